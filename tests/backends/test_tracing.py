"""Spans by verl's own hook into a real MLflow store of files."""

import asyncio
from types import SimpleNamespace

import pytest

mlflow = pytest.importorskip("mlflow", reason="the extra `trace` is not installed")

from omegaconf import OmegaConf  # noqa: E402
from verl.utils.rollout_trace import RolloutTraceConfig  # noqa: E402

from retool_mcore.backends.verl import tracing  # noqa: E402
from retool_mcore.errors import UserError  # noqa: E402
from retool_mcore.tools.base import Reply  # noqa: E402

TOKENIZER = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))


class Tools:
    """What a TracedToolbox stands around."""

    def __init__(self):
        self.replies = [Reply("NameError", status="error"), Reply("42")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    before = mlflow.get_tracking_uri()
    tracing.try_store(tmp_path / "mlflow")
    RolloutTraceConfig.reset()
    RolloutTraceConfig.init(tracing.PROJECT, "mine", "mlflow", token2text=True, max_samples_per_step_per_worker=1)
    yield tmp_path / "mlflow"
    RolloutTraceConfig.reset()
    mlflow.set_tracking_uri(before)


def traces():
    mlflow.flush_trace_async_logging()
    place = mlflow.get_experiment_by_name(tracing.PROJECT).experiment_id
    return mlflow.search_traces(locations=[place], return_type="list")


@pytest.mark.parametrize("limit", [1, None])
def test_the_first_prompts_of_a_step_are_traced_with_calls_and_reward(store, monkeypatch, limit):

    class Judge:
        def __init__(self):
            self.score = self

        async def remote(self, row, response_ids, told):
            return {"score": 1.0, "acc": 1.0}

    async def call(self, name, arguments, episode):
        return self.replies.pop(0)

    monkeypatch.setattr(tracing.Toolbox, "call", call)
    made = object.__new__(tracing.TracedEpisodes)
    made.prompts, made.traced, made.tokenizer = limit, {}, TOKENIZER
    row = {"data_source": "math", "index": 9, "reward_model": {"ground_truth": "42"}}

    async def one(uid, number, step):
        async with made.trace(uid, number, row, step):
            toolbox = tracing.TracedToolbox(Tools())
            for program in range(2):
                await toolbox.call("code_interpreter", {"code": f"program {program}"}, "the episode")
            sample = SimpleNamespace(group=uid, number=number, prompt_ids=[1, 2], response_ids=[3], finish="answer")
            assert (await made.scored(Judge(), row, sample, {"policy_text": "\\boxed{42}"}))["acc"] == 1.0

    async def main():
        for uid, number, step in (("val-0", 0, 0), ("a", 0, 3), ("a", 1, 3), ("b", 0, 3), ("c", 0, 4)):
            await one(uid, number, step)

    asyncio.run(main())
    found = {trace.info.tags["trajectory"]: trace for trace in traces()}
    assert sorted(found) == (["a_0", "a_1", "c_0"] if limit else ["a_0", "a_1", "b_0", "c_0"])
    tags, spans = found["a_1"].info.tags, found["a_1"].data.spans
    assert (tags["step"], tags["problem"], tags["reward"], tags["finish"]) == ("3", "math #9", "1.0", "answer")
    assert [one.name for one in spans] == ["agent_loop", *["tool code_interpreter"] * 2, "reward"]
    assert spans[0].inputs == {"prompt": "1 2"} and spans[0].outputs["response"] == "3"
    assert spans[1].inputs == {"inputs": {"arguments": {"code": "program 0"}}}
    assert [(span.outputs["status"], span.outputs["text"]) for span in spans[1:3]] == [
        ("error", "NameError"), ("success", "42"),
    ]  # fmt: skip
    assert {span.parent_id for span in spans[1:]} == {spans[0].span_id}
    assert spans[3].inputs == {"inputs": {"answer": "\\boxed{42}", "expected": "42"}}
    assert spans[3].outputs == {"reward": 1.0, "acc": 1.0}


def test_the_probe_of_the_store_leaves_nothing_behind(store):
    assert traces() == [] and store.is_dir()


def test_a_store_that_does_not_answer_is_named(tmp_path, monkeypatch):
    (tmp_path / "mlflow").write_text("a file")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(UserError, match="trace.backend=mlflow: the store file:.*/mlflow does not answer"):
        tracing.try_store(tmp_path / "other")
    mlflow.set_tracking_uri(None)


def test_the_configuration_turns_the_hook_on():
    verl = OmegaConf.create({"actor_rollout_ref": {"rollout": {"trace": {"backend": None}}}})
    tracing.enable(verl, name="mine", prompts=2)
    trace = verl.actor_rollout_ref.rollout.trace
    assert (trace.backend, trace.experiment_name, trace.max_samples_per_step_per_worker) == ("mlflow", "mine", 2)


def test_the_tools_of_an_episode_are_traced():
    made = object.__new__(tracing.TracedEpisodes)
    made.toolbox = SimpleNamespace(for_row=lambda row: Tools())
    made.format = SimpleNamespace(name="text")
    assert type(made.tools({})) is tracing.TracedToolbox
    made.format = SimpleNamespace(name="none")
    assert made.tools({}) is None
