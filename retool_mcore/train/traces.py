"""Episodes as OpenTelemetry spans, exported by OTLP over HTTP.

    invoke_agent retool            the episode
      chat MODEL                   one policy turn
      execute_tool NAME            one call
      reward NAME                  the score, with the event gen_ai.evaluation.result

Names and attributes follow OpenTelemetry's conventions for generative AI; `retool.*` attributes name the training step,
the problem, the sample and the run. The spans are built from the record of a scored trajectory, with the times in it:
an episode is not slowed down. A thread of the trainer's process sends them. OTEL_* variables name the receiver and
hold its keys.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from retool_mcore.files import shown, without_secrets
from retool_mcore.metrics.behaviour import queued_s
from retool_mcore.ports import otlp_receiver
from retool_mcore.rollout.samples import Group, Sample

SEND_S = 5.0  # of one batch, unless OTEL_EXPORTER_OTLP_TIMEOUT gives another
CLOSE_S = 5.0  # for the spans that are left at the end
QUEUE = 2048  # spans, unless OTEL_BSP_MAX_QUEUE_SIZE gives another
BATCH = 512  # spans of a request, unless OTEL_BSP_MAX_EXPORT_BATCH_SIZE gives another
TEXT_BATCH = 32  # of a request with text: receivers refuse large ones
_TIMEOUT = "OTEL_EXPORTER_OTLP_TIMEOUT"
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_MLFLOW_TAG = "mlflow.traceTag."
_FINISHES = {"answer": "stop", "length": "length", "turn_length": "length"}


class Traces:
    """Sends the episodes of the first prompts of each step.

    Args:
        settings: `experiment`, `model` and `reward`: names; `temperature`, `top_p`; `prompts`: how many of a step, None
            for all; `text`: prompts, responses, programs and outputs are sent, too.
        tokenizer: the policy's.
    """

    def __init__(self, settings: Mapping[str, Any], tokenizer):
        self.settings, self.tokenizer = settings, tokenizer
        timeout = float(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT") or os.environ.get(_TIMEOUT) or SEND_S)
        self.exporter = CountingExporter(OTLPSpanExporter(timeout=timeout))
        self.queue = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE)
        batch = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") or (TEXT_BATCH if settings["text"] else BATCH))
        service = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "retool"}
        self.provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        self.provider.add_span_processor(
            BatchSpanProcessor(
                self.exporter, max_queue_size=self.queue, max_export_batch_size=min(batch, self.queue)
            )  # fmt: skip
        )
        self.tracer = self.provider.get_tracer("retool_mcore")
        self.queued = self.refused = 0  # spans
        print(f"Episodes are traced to {self.exporter.receiver}", flush=True)

    def add(self, group: Group) -> None:
        """Queue the spans of the group's samples, if it is one of the first prompts of its step. A queue without room
        for a whole episode drops it."""
        prompts = self.settings["prompts"]
        if prompts is not None and int(group.uid.rpartition("-")[2]) >= prompts:  # its place in its step
            return
        for sample in group.samples:
            episode = _Episode(self, group, sample)
            if self.queued - self.exporter.ended + episode.count > self.queue:
                self.refused += episode.count
            else:
                self.queued += episode.emit()

    def metrics(self) -> dict[str, float]:
        """Return the spans sent since the start, and those dropped because the queue was full or sending failed."""
        return {"trace/spans_sent": self.exporter.sent, "trace/spans_dropped": self.refused + self.exporter.failed}

    def close(self) -> None:
        """Send the rest, for at most CLOSE_S and the time limit of one request."""
        self.exporter.close_soon()
        self.provider.shutdown()
        dropped = self.refused + self.queued - self.exporter.sent
        print(f"traces: {self.exporter.sent} spans sent to {self.exporter.receiver}, {dropped} dropped", flush=True)


class _Episode:
    """The spans of one sample."""

    def __init__(self, traces: Traces, group: Group, sample: Sample):
        self.settings, self.tracer, self.tokenizer = traces.settings, traces.tracer, traces.tokenizer
        self.sample, self.notes, self.row = sample, sample.notes, group.row
        self.count = 2 + len(self.notes["turn_notes"]) + len(self.notes["calls"])
        self.sampled = 0  # spans that the processor takes: OTEL_TRACES_SAMPLER may leave some out
        self.right = float(sample.outcome["acc"])
        self.place = {
            "gen_ai.conversation.id": f"{sample.group}_{sample.number}",
            "retool.experiment": self.settings["experiment"],
            "retool.step": group.step,
            "retool.sample_index": int(group.row["index"]),
            "retool.rollout_n": sample.number,
            "retool.data_source": str(group.row["data_source"]),
        }

    def emit(self) -> int:
        """Queue the spans; returns how many were queued."""
        clock = float(self.notes["started"])
        prompt = self._text(self.sample.prompt_ids)
        root = self._start("invoke_agent retool", None, clock, self._about(prompt))
        turns, waits = _turns(self.notes["spans"]), queued_s(self.notes)
        read = ("user", prompt)
        for number, (note, (written, observed)) in enumerate(zip(self.notes["turn_notes"], turns, strict=True)):
            self._turn(root, clock, note["generate_s"], number, written, read, final=number == len(turns) - 1)
            clock += note["generate_s"]
            calls = [call for call in self.notes["calls"] if call["turn"] == number]
            self._calls(root, clock + waits[number], note["tool_s"] - waits[number], calls)
            clock += note["tool_s"]
            if observed is not None:
                read = ("tool", self._text(self.sample.response_ids[slice(*observed)]))
        self._reward(root, clock)
        self._end(root, clock + self.sample.score_s)
        return self.sampled

    def _about(self, prompt: str | None) -> dict:
        sample, response = self.sample, self._text(self.sample.response_ids)
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "retool",
            "gen_ai.usage.input_tokens": len(sample.prompt_ids),
            "gen_ai.usage.output_tokens": int(sample.response_mask.sum()),
            "retool.finish": sample.finish,
            "retool.turns": len(self.notes["turn_notes"]),
            "retool.calls": len(self.notes["calls"]),
            "retool.reward": sample.reward,
            "retool.accuracy": self.right,
            "retool.taken_over": bool(self.notes.get("taken_over")),
        }
        about |= _versions(sample.versions)
        # MLflow makes a trace's tags of these; its filters of attributes find more than was asked for.
        tags = {f"{_MLFLOW_TAG}{name.rpartition('.')[2]}": str(value) for name, value in (self.place | about).items()
                if name.startswith("retool.")}  # fmt: skip
        return about | tags | _input("user", prompt) | _output(response, sample.finish)

    def _turn(
        self, root: Span, clock: float, seconds: float, number: int, written: tuple[int, int], read, *, final: bool
    ) -> None:
        (start, end), sample = written, self.sample
        parts = [v["version"] for v in self.notes.get("versions") or () if v["start"] < end and v["end"] > start]
        finish = sample.finish if final else "tool_call"
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": self.settings["model"],
            "gen_ai.request.temperature": self.settings["temperature"],
            "gen_ai.request.top_p": self.settings["top_p"],
            "gen_ai.usage.input_tokens": len(sample.prompt_ids) + start,
            "gen_ai.usage.output_tokens": end - start,
            "gen_ai.response.finish_reasons": [_FINISHES.get(finish, finish)],
            "retool.turn": number,
        }
        about |= _versions(parts or sample.versions) | _input(*read)
        about |= _output(self._text(sample.response_ids[start:end]), finish)
        span = self._start(f"chat {self.settings['model']}", root, clock, about, SpanKind.CLIENT)
        self._end(span, clock + seconds)

    def _calls(self, root: Span, clock: float, seconds: float, calls: Sequence[Mapping]) -> None:
        """The calls of one turn, one after the other unless they ran together: then they took longer than the turn."""
        durations = [call["duration_s"] or 0.0 for call in calls]
        together = sum(durations) > seconds + 0.001
        for place, (call, duration) in enumerate(zip(calls, durations, strict=True)):
            name = call["tool"] or "unknown"
            about = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": f"{self.place['gen_ai.conversation.id']}/{call['turn']}/{place}",
                "retool.turn": call["turn"],
                "retool.status": str(call["status"]),
            }
            if self.settings["text"]:
                program = None if call["code"] is None else json.dumps({"code": call["code"]})
                about["gen_ai.tool.call.arguments"] = program or call["arguments"] or ""
                about["gen_ai.tool.call.result"] = call["stdout"] + call["stderr"]
            span = self._start(f"execute_tool {name}", root, clock, about)
            if call["status"] != "success":
                _fail(span, str(call["status"]))
            self._end(span, clock + duration)
            clock += 0 if together else duration

    def _reward(self, root: Span, clock: float) -> None:
        outcome, end = self.sample.outcome, clock + self.sample.score_s
        score = {
            "gen_ai.evaluation.name": self.settings["reward"],
            "gen_ai.evaluation.score.value": self.sample.reward,
            "gen_ai.evaluation.score.label": "right" if self.right > 0 else "wrong",
        }
        about = score | {"retool.reward": self.sample.reward, "retool.accuracy": self.right}
        if self.settings["text"]:
            about["retool.answer"] = str(outcome["pred"])
            about["retool.expected"] = str(dict(self.row.get("reward_model") or {}).get("ground_truth"))
        span = self._start(f"reward {self.settings['reward']}", root, clock, about)
        span.add_event("gen_ai.evaluation.result", score, timestamp=_ns(end))
        if outcome.get("error"):
            _fail(span, "reward_raised")
        self._end(span, end)

    def _start(self, name: str, parent: Span | None, start: float, about: Mapping, kind=SpanKind.INTERNAL) -> Span:
        context = set_span_in_context(parent) if parent else Context()  # else that of whoever traces the trainer
        return self.tracer.start_span(name, context, kind, self.place | dict(about), start_time=_ns(start))

    def _end(self, span: Span, end: float) -> None:
        span.end(_ns(end))
        self.sampled += span.get_span_context().trace_flags.sampled

    def _text(self, ids) -> str | None:
        return self.tokenizer.decode(ids) if self.settings["text"] else None


class CountingExporter(SpanExporter):
    """Counts the spans that `inner` has sent, and those that it could not send. The first failure is reported.

    close_soon: CLOSE_S later nothing is sent any more.
    """

    def __init__(self, inner: SpanExporter):
        self.inner, self.sent, self.failed = inner, 0, 0
        self.receiver = shown(otlp_receiver(os.environ) or "")
        self.deadline = float("inf")
        self.closer: threading.Timer | None = None
        self.failing = False
        self.log = _LastMessage()
        logger = logging.getLogger(_EXPORTER_LOG)  # else a line for each batch
        logger.handlers, logger.propagate = [self.log], False

    @property
    def ended(self) -> int:
        """Spans that are no longer in the queue."""
        return self.sent + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        late = time.monotonic() > self.deadline
        result = SpanExportResult.FAILURE if late else self.inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        self.sent += 0 if failed else len(spans)
        self.failed += len(spans) if failed else 0
        if failed != self.failing and not late:
            self.failing = failed
            news = f"does not take spans, they are dropped ({self.log.text})" if failed else "takes spans again"
            print(f"traces: {self.receiver} {news}", flush=True)
        return result

    def close_soon(self) -> None:
        self.deadline = time.monotonic() + CLOSE_S
        self.closer = threading.Timer(CLOSE_S, self.inner.shutdown)  # ends a wait between two tries
        self.closer.daemon = True
        self.closer.start()

    def shutdown(self) -> None:
        if self.closer:
            self.closer.cancel()
        self.inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self.inner.force_flush(timeout_millis)


class _LastMessage(logging.Handler):
    """Keeps the last reason that the exporter gave."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if "max retries or shutdown" not in text or not self.text:  # the warning before it has the reason
            self.text = without_secrets(text, otlp_receiver(os.environ) or "")[:300]


def _turns(spans: Sequence[Mapping]) -> list[tuple[tuple[int, int], tuple[int, int] | None]]:
    """(tokens that the policy wrote, tokens that it read then or None) of each turn, as offsets in the response."""
    turns: list[tuple[tuple[int, int], tuple[int, int] | None]] = []
    for span in spans:
        place = (span["start"], span["end"])
        if span["kind"] == "policy":
            turns.append((place, None))
        else:
            turns[-1] = (turns[-1][0], place)
    return turns


def _versions(versions: Sequence[int]) -> dict[str, int]:
    return {"retool.weight_version": max(versions), "retool.weight_version_first": min(versions)}


def _input(role: str, text: str | None) -> dict[str, str]:
    return {} if text is None else {"gen_ai.input.messages": json.dumps([_message(role, text)])}


def _output(text: str | None, finish: str) -> dict[str, str]:
    if text is None:
        return {}
    reason = {"finish_reason": _FINISHES.get(finish, finish)}
    return {"gen_ai.output.messages": json.dumps([_message("assistant", text) | reason])}


def _message(role: str, text: str) -> dict:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
