"""Episodes as OpenTelemetry spans, sent to a plain OTLP receiver over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `trace` is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402
from opentelemetry.proto.trace.v1.trace_pb2 import Span  # noqa: E402
from played_loop import Engines, attempt, settings  # noqa: E402

from retool_mcore.backends.verl.settings import verl_config  # noqa: E402
from retool_mcore.config import compose  # noqa: E402
from retool_mcore.rollout.samples import Group, Sample  # noqa: E402
from retool_mcore.train import rl, traces  # noqa: E402

TOKENIZER = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
SETTINGS = {
    "experiment": "mine", "model": "tiny", "reward": "retool", "temperature": 1.0, "top_p": 0.9, "prompts": 1,
    "text": False,
}  # fmt: skip
STARTED = 1_700_000_000.0


class Receiver:
    """An OTLP receiver: keeps the spans of its requests. `answer`: the status of its answers; `seconds` before each."""

    def __init__(self):
        self.spans, self.resources, self.headers, self.answer, self.seconds = [], [], [], 200, 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(outer.seconds)
                outer.headers.append((self.path, dict(self.headers)))
                if outer.answer == 200:
                    for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                        outer.resources.append(plain(one.resource.attributes))
                        outer.spans += [span for scope in one.scope_spans for span in scope.spans]
                self.send_response(outer.answer)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver(monkeypatch):
    made = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.address)
    yield made
    made.close()


def plain(attributes) -> dict:
    def value(one):
        kind = one.WhichOneof("value")
        return [value(part) for part in one.array_value.values] if kind == "array_value" else getattr(one, kind)

    return {one.key: value(one.value) for one in attributes}


def call(turn, status="success", seconds=0.5, **values):
    base = {
        "code": f"program {turn}", "malformed": False, "status": status, "stdout": "42\n", "stderr": "", "value": None,
        "duration_s": seconds, "turn": turn, "start": 0, "truncated": False,
        "tool": "code_interpreter", "arguments": None,
    }  # fmt: skip
    return base | values


def sample(uid="000003-000000", number=0, **values):
    """Two turns: tokens 0 to 3 with one call, an observation of 2, tokens 5 to 7 with the answer."""
    notes = {
        "spans": [
            {"kind": "policy", "start": 0, "end": 3},
            {"kind": "observation", "start": 3, "end": 5},
            {"kind": "policy", "start": 5, "end": 7},
        ],
        "calls": [call(0)],
        "turn_notes": [{"generate_s": 2.0, "tool_s": 1.5}, {"generate_s": 1.0, "tool_s": 0.0}],
        "versions": [{"version": 1, "start": 0, "end": 3}, {"version": 2, "start": 5, "end": 7}],
        "started": STARTED,
    }
    outcome = {"score": 1.0, "acc": 1.0, "pred": "42", "drop": "", "overlong": 0.0}
    made = Sample(
        uid, number, [8, 9], list(range(10, 17)), [1, 1, 1, 0, 0, 1, 1], [], notes | values.pop("notes", {}),
        "answer", 4, (1, 2), outcome=outcome | values.pop("outcome", {}), score_s=0.25,
    )  # fmt: skip
    return made


def group(*samples, uid="000003-000000", step=3):
    row = {"data_source": "math", "index": 9, "reward_model": {"ground_truth": "42"}}
    return Group(uid, row, step, samples=list(samples))


def sent(receiver, *groups, **settings) -> list[Span]:
    made = traces.Traces(SETTINGS | settings, TOKENIZER)
    for one in groups:
        made.add(one)
    made.close()
    return receiver.spans


def test_an_episode_is_a_trace_of_its_turns_calls_and_reward(receiver):
    spans = sent(receiver, group(sample()))
    assert [span.name for span in sorted(spans, key=lambda span: (span.start_time_unix_nano, -len(span.name)))] == [
        "invoke_agent retool", "chat tiny", "execute_tool code_interpreter", "chat tiny", "reward retool",
    ]  # fmt: skip
    (root,) = (span for span in spans if not span.parent_span_id)
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    assert len({span.trace_id for span in spans}) == 1
    about = {span.name: plain(span.attributes) for span in spans}
    for attributes in about.values():
        place = {name: attributes[f"retool.{name}"] for name in ("experiment", "step", "sample_index", "rollout_n")}
        assert place == {"experiment": "mine", "step": 3, "sample_index": 9, "rollout_n": 0}
        assert attributes["gen_ai.conversation.id"] == "000003-000000_0"
    assert about["invoke_agent retool"]["gen_ai.operation.name"] == "invoke_agent"
    assert about["invoke_agent retool"]["retool.weight_version"] == 2
    assert about["invoke_agent retool"]["retool.weight_version_first"] == 1
    assert about["invoke_agent retool"]["gen_ai.usage.output_tokens"] == 5  # of 7: two were read
    assert about["execute_tool code_interpreter"]["gen_ai.tool.name"] == "code_interpreter"
    assert about["reward retool"]["gen_ai.evaluation.score.value"] == 1.0
    first, second = sorted((s for s in spans if s.name == "chat tiny"), key=lambda s: s.start_time_unix_nano)
    turn = plain(first.attributes)
    assert first.kind == Span.SpanKind.SPAN_KIND_CLIENT
    assert (turn["gen_ai.operation.name"], turn["gen_ai.request.model"]) == ("chat", "tiny")
    assert turn["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert (turn["gen_ai.usage.input_tokens"], turn["gen_ai.usage.output_tokens"]) == (2, 3)
    assert (turn["retool.weight_version"], turn["gen_ai.request.top_p"]) == (1, 0.9)
    assert plain(second.attributes)["gen_ai.usage.input_tokens"] == 7
    assert plain(second.attributes)["gen_ai.response.finish_reasons"] == ["stop"]
    (reward,) = (span for span in spans if span.name.startswith("reward"))
    assert [event.name for event in reward.events] == ["gen_ai.evaluation.result"]
    assert receiver.resources[0]["service.name"] == "retool"


def test_spans_have_the_times_of_the_record(receiver):
    spans = {span.name if span.name != "chat tiny" else f"chat {plain(span.attributes)['retool.turn']}": span
             for span in sent(receiver, group(sample()))}  # fmt: skip
    seconds = {
        name: tuple(round(t / 1e9 - STARTED, 3) for t in (span.start_time_unix_nano, span.end_time_unix_nano))
        for name, span in spans.items()
    }
    assert seconds == {
        "invoke_agent retool": (0, 4.75), "chat 0": (0, 2), "execute_tool code_interpreter": (3, 3.5),
        "chat 1": (3.5, 4.5), "reward retool": (4.5, 4.75),
    }  # fmt: skip


@pytest.mark.parametrize(("tool_s", "starts"), [(1.0, [2.0, 2.5]), (0.5, [2.0, 2.0])])
def test_calls_of_a_turn_follow_one_another_or_run_together(receiver, tool_s, starts):
    turns = [{"generate_s": 2.0, "tool_s": tool_s}, {"generate_s": 1.0, "tool_s": 0.0}]
    notes = {"calls": [call(0), call(0)], "turn_notes": turns}
    spans = sent(receiver, group(sample(notes=notes)))
    calls = sorted(span.start_time_unix_nano / 1e9 - STARTED for span in spans if span.name.startswith("execute"))
    assert [round(start, 3) for start in calls] == starts


@pytest.mark.parametrize("status", ["error", "timeout", "malformed"])
def test_a_call_that_failed_is_an_error(receiver, status):
    failed = call(0, status, code=None, arguments='{"x": 1}', tool=None, duration_s=None)
    spans = sent(receiver, group(sample(notes={"calls": [failed]})), text=True)
    (span,) = (span for span in spans if span.name == "execute_tool unknown")
    assert span.status.code == span.status.STATUS_CODE_ERROR
    about = plain(span.attributes)
    assert (about["error.type"], about["gen_ai.tool.call.arguments"]) == (status, '{"x": 1}')


def test_a_reward_that_raised_is_an_error(receiver):
    spans = sent(receiver, group(sample(outcome={"score": 0.0, "acc": 0.0, "error": "KeyError"})))
    (span,) = (span for span in spans if span.name == "reward retool")
    assert plain(span.attributes)["error.type"] == "reward_raised"
    assert plain(span.attributes)["gen_ai.evaluation.score.label"] == "wrong"


def test_text_goes_along_only_where_it_is_asked_for(receiver):
    texts = ("messages", "arguments", "result", "answer", "expected")
    for span in sent(receiver, group(sample())):
        assert not [name for name in plain(span.attributes) if name.rpartition(".")[2] in texts]
    receiver.spans.clear()
    about = {}
    for span in sent(receiver, group(sample()), text=True):
        attributes = plain(span.attributes)
        about[span.name, attributes.get("retool.turn", -1)] = attributes
    messages = json.loads(about["chat tiny", 1]["gen_ai.input.messages"])
    assert messages == [{"role": "tool", "parts": [{"type": "text", "content": "13 14"}]}]
    written = json.loads(about["chat tiny", 0]["gen_ai.output.messages"])
    parts = [{"type": "text", "content": "10 11 12"}]
    assert written == [{"role": "assistant", "parts": parts, "finish_reason": "tool_call"}]
    assert json.loads(about["chat tiny", 0]["gen_ai.input.messages"])[0]["parts"][0]["content"] == "8 9"
    program = about["execute_tool code_interpreter", 0]
    assert program["gen_ai.tool.call.arguments"] == '{"code": "program 0"}'
    assert program["gen_ai.tool.call.result"] == "42\n"
    reward = about["reward retool", -1]
    assert (reward["retool.answer"], reward["retool.expected"]) == ("42", "42")


@pytest.mark.parametrize(
    ("prompts", "traced"), [(1, {"000003-000000"}), (2, {"000003-000000", "000003-000001"}), (None, 3)]
)
def test_the_first_prompts_of_a_step_are_traced(receiver, prompts, traced):
    uids = [f"000003-{order:06d}" for order in (2, 0, 1)]  # in the order in which they end
    spans = sent(receiver, *(group(sample(uid), sample(uid, 1), uid=uid) for uid in uids), prompts=prompts)
    found = {plain(span.attributes)["gen_ai.conversation.id"].rpartition("_")[0] for span in spans}
    assert found == (set(uids) if prompts is None else traced)
    assert len([span for span in spans if span.name == "invoke_agent retool"]) == 2 * len(found)


def test_a_group_that_failed_has_no_spans(receiver):
    assert sent(receiver, group()) == []


def test_addresses_names_and_keys_are_those_of_the_variables(receiver, monkeypatch, capsys):
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.address.replace('//', '//me:s3cr3t@')}/otel/v1/traces"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=s3cr3t")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=mine")
    sent(receiver, group(sample()))
    path, headers = receiver.headers[0]
    assert (path, headers["x-api-key"]) == ("/otel/v1/traces", "s3cr3t")
    assert receiver.resources[0]["service.name"] == "other"
    assert receiver.resources[0]["openinference.project.name"] == "mine"
    assert "s3cr3t" not in capsys.readouterr().out


@pytest.mark.parametrize("answer", [401, 503])
def test_spans_that_are_refused_are_counted_and_reported_once(receiver, monkeypatch, capsys, answer):
    monkeypatch.setattr(traces, "SEND_S", 1.5)  # for a second try of what may be tried again
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    receiver.answer = answer
    made = traces.Traces(SETTINGS, TOKENIZER)
    for failed in (5, 10):
        made.add(group(sample()))
        wait_until(made, "trace/spans_dropped", failed)
    receiver.answer = 200
    made.add(group(sample()))
    wait_until(made, "trace/spans_sent", 5)
    made.close()
    out = capsys.readouterr().out
    assert out.count("does not take spans") == 1 and "takes spans again" in out
    assert ("Unauthorized" if answer == 401 else "Service Unavailable") in out
    assert "5 spans sent" in out and "10 dropped" in out


@pytest.mark.parametrize("death", ["nobody listens", "it never answers"])
def test_a_dead_receiver_slows_and_stops_nothing(receiver, monkeypatch, capsys, death):
    monkeypatch.setattr(traces, "SEND_S", 0.5)
    monkeypatch.setattr(traces, "CLOSE_S", 0.5)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "40")
    if death == "nobody listens":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    else:
        receiver.seconds = 60.0
    made = traces.Traces(SETTINGS | {"prompts": None}, TOKENIZER)
    clock = time.monotonic()
    for order in range(100):
        made.add(group(sample(), uid=f"000003-{order:06d}"))
    assert time.monotonic() - clock < 2  # 500 spans; a request alone takes half a second
    dropped = made.metrics()["trace/spans_dropped"]
    assert dropped >= 400 and dropped % 5 == 0  # whole episodes
    clock = time.monotonic()
    made.close()
    assert time.monotonic() - clock < 5
    assert "0 spans sent" in (out := capsys.readouterr().out) and "500 dropped" in out


def test_the_loop_traces_every_group_that_ends_and_logs_what_was_dropped(tmp_path, monkeypatch):
    seen = []

    class Collected:
        def add(self, group):
            seen.append(group.uid)

        def metrics(self):
            return {"trace/spans_sent": len(seen), "trace/spans_dropped": 0}

        def close(self):
            seen.append("closed")

    _, log = attempt(tmp_path, monkeypatch, settings(steps=2), Engines(), traces=Collected())
    assert seen == ["000001-000000", "000001-000001", "000002-000000", "000002-000001", "closed"]
    assert [metrics["trace/spans_sent"] for metrics in log.steps.values()] == [2, 4]


@pytest.mark.parametrize("backend", ["none", "otlp"])
def test_the_loop_gets_its_settings_from_the_configuration(tmp_path, backend):
    (tmp_path / "t" / "rl").mkdir(parents=True)
    values = ["name=t", f"runs_dir={tmp_path}", f"trace.backend={backend}", "trace.prompts=null", "trace.text=true"]
    section = verl_config(compose("rl", values), tmp_path / "t" / "rl").retool.traces
    assert section == (
        None if backend == "none" else SETTINGS | {"experiment": "t", "top_p": 1.0, "prompts": None, "text": True}
    )
    if backend == "none":
        assert rl.open_traces(section, TOKENIZER) is None


def test_a_sampler_of_the_variables_counts(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    made = traces.Traces(SETTINGS, TOKENIZER)
    made.add(group(sample()))
    assert made.queued == 0
    made.close()
    assert receiver.spans == []


def wait_until(made, metric, value, seconds=20.0):
    end = time.monotonic() + seconds
    while made.metrics()[metric] != value:
        assert time.monotonic() < end
        time.sleep(0.02)
