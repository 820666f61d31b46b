"""Environments of the package verifiers, in the interface of the version that is installed.

Without the package (it is no dependency) only what is said then is tested.
"""

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from recipe_samples import sample as make_sample

from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.environments import verifiers as adapter
from retool_mcore.errors import UserError
from retool_mcore.rewards.sample import of_row
from retool_mcore.rollout.trajectory import Call
from retool_mcore.tools.base import Episode, Tool, function_schema
from retool_mcore.tools.toolbox import create_toolbox

MODULE = """
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b

def right(completion, answer) -> float:
    return float(completion[-1]["content"].strip().endswith(answer))

def load_environment(kind="tool", **kwargs):
    data = Dataset.from_list([{"question": "1 + 2?", "answer": "3"}, {"question": "2 + 2?", "answer": "4"}])
    rubric = vf.Rubric(funcs=[right])
    if kind == "talk":
        class Talk(vf.MultiTurnEnv):
            async def env_response(self, messages, state, **kwargs):
                return []
        return Talk(dataset=data, rubric=rubric)
    return vf.ToolEnv(dataset=data, rubric=rubric, tools=[add])
"""
TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumConfig(vf.TasksetConfig):
    kind: str = "tool"

class Shared(vf.State):
    calls: int = 0

class Adder(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    async def setup_task(self, task):
        self.offset = int(task.answer) - 3

    @vf.tool
    def add(self, a: int, b: int) -> int:
        "Adds two numbers."
        return a + b

    @vf.tool
    def offset_of(self) -> int:
        "Says which task this is."
        return self.offset

class SharedAdder(vf.Toolset[vf.ToolsetConfig, Shared]):
    pass

class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.endswith(self.data.answer))

    @vf.reward(weight=0.5)
    async def added(self, task, trace) -> float:
        return float(any(message.content == task.answer for message in trace.tool_messages))

    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

class Sums(vf.Taskset[SumTask, SumConfig]):
    INFINITE = True

    @classmethod
    def toolsets(cls, config):
        return [SharedAdder(vf.ToolsetConfig())] if config.kind == "shared" else []

    def load(self):
        n = 0
        while True:
            prompt = None if self.config.kind == "user" else f"{n + 1} + 2?"
            yield SumTask(SumData(prompt=prompt, system_prompt="Be brief.", answer=str(n + 3)), self.config.task)
            n += 1

__all__ = ["Sums"]
"""
PATH = "retool_mcore.environments.verifiers.VerifiersTools"


def installed(tmp_path, monkeypatch, text):
    (tmp_path / "vf_sums.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    adapter._load.cache_clear()
    yield "vf_sums"
    sys.modules.pop("vf_sums", None)


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """An environment of 0.1."""
    if not hasattr(pytest.importorskip("verifiers"), "load_environment"):
        pytest.skip("this verifiers has tasksets")
    yield from installed(tmp_path, monkeypatch, MODULE)


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    """A taskset of 0.4."""
    pytest.importorskip("verifiers.v1")
    yield from installed(tmp_path, monkeypatch, TASKSET)


def test_without_the_package_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(UserError, match=r"^the verifiers environment x cannot be loaded .*: install it first\.$"):
        create_toolbox({"use": [{"path": PATH, "args": {"name": "x"}}]})


def test_it_is_loaded_outside_of_the_main_thread_as_an_agent_worker_does(sums):
    (tool,) = asyncio.run(asyncio.to_thread(adapter.VerifiersTools, sums)).tools
    assert tool.name == "add"


def test_rows_tools_and_rubric(sums, tmp_path):
    toolbox = create_toolbox({"use": [{"path": PATH, "args": {"name": sums}}]})
    path = tmp_path / "rows.parquet"
    adapter.VerifiersTools(sums).write_rows(path)
    check_rl(path)
    row = rows_of(str(path))[0]
    assert row["prompt"][-1] == {"role": "user", "content": "1 + 2?"}
    own = toolbox.for_row(row["extra_info"])
    reply = asyncio.run(own.call("add", {"a": 1, "b": 2}, Episode(row["extra_info"])))
    assert (list(own.tools), reply.text, reply.status) == (["add"], "3", "success")
    failed = asyncio.run(own.call("add", {"a": 1, "b": None}, Episode(row["extra_info"])))
    assert failed.status == "error"
    call = Call(
        None, False, "success", "3", "", None, 0.0, 0, 0, False, tool="add", arguments=json.dumps({"a": 1, "b": 2})
    )
    ended = replace(make_sample(**of_row("", row["extra_info"])), calls=[call], policy_text="It is 3")
    assert adapter.rubric(ended, name=sums) == 1.0
    assert adapter.rubric(replace(ended, policy_text="It is 4"), name=sums) == 0.0


class Own(Tool):
    schema = function_schema("own", "Of the user's.", {"type": "object", "properties": {}})


def test_rows_list_tools_of_ones_own_beside_the_environments(sums, tmp_path):
    adapter.VerifiersTools(sums).write_rows(tmp_path / "rows.parquet", beside=[Own()])
    listed = json.loads(rows_of(str(tmp_path / "rows.parquet"))[0]["extra_info"]["tools"])
    assert [tool["function"]["name"] for tool in listed] == ["add", "own"]


def test_an_environment_that_answers_texts_is_refused(sums):
    with pytest.raises(UserError, match="is a Talk: only SingleTurnEnv and ToolEnv are run"):
        adapter.VerifiersTools(sums, {"kind": "talk"})


def called(name, text, **arguments):
    return Call(None, False, "success", text, "", None, 0.0, 0, 0, False, tool=name, arguments=json.dumps(arguments))


def test_a_tasksets_rows_tools_and_rewards(taskset, tmp_path):
    use = [{"path": PATH, "args": {"name": taskset}}]
    toolbox, path = create_toolbox({"use": use}), tmp_path / "rows.parquet"
    adapter.VerifiersTools(taskset).write_rows(path, count=3)
    check_rl(path)
    rows = rows_of(str(path))
    assert [row["prompt"] for row in rows][1] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"},
    ]  # fmt: skip
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2] and rows[0]["reward_model"]["ground_truth"] == ""

    async def episode(row):
        own, state = toolbox.for_row(row["extra_info"]), Episode(row["extra_info"])
        calls = [("add", {"a": 1, "b": 2}), ("offset_of", {}), ("add", {"a": 1, "b": "x"})]
        replies = [await own.call(name, arguments, state) for name, arguments in calls]
        await own.release(state)
        return replies

    added, offset, wrong = asyncio.run(episode(rows[2]))
    assert (added.text, offset.text, wrong.status) == ("3", "2", "error"), "each episode has a toolset for its task"
    ended = replace(make_sample(**of_row("", rows[1]["extra_info"])), policy_text="It is 4")
    assert adapter.rubric(ended, name=taskset) == 1.0
    assert adapter.rubric(replace(ended, calls=[called("add", "4", a=2, b=2)]), name=taskset) == 1.5
    assert adapter.rubric(replace(ended, policy_text="5"), name=taskset) == 0.0


def test_numbers_of_tasks_are_rows_by_seed(taskset):
    made = list(adapter.VerifiersTools(taskset).rows(range(4, 6), "test", None))
    assert [row["extra_info"]["index"] for row in made] == [4, 5] and made[0]["prompt"][1]["content"] == "5 + 2?"


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"kind": "shared"}, "shares state between SharedAdder and its rewards"),
        ({"knd": "tool"}, "cannot be loaded .*knd"),
    ],
)
def test_tasksets_that_need_more_are_refused(taskset, args, match):
    with pytest.raises(UserError, match=match):
        adapter.VerifiersTools(taskset, args)


def test_tasks_without_end_or_without_a_prompt_are_refused(taskset, tmp_path):
    with pytest.raises(UserError, match="has no end: say how many"):
        adapter.VerifiersTools(taskset).write_rows(tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="task 0 of vf_sums has no prompt: its user begins"):
        adapter.VerifiersTools(taskset, {"kind": "user"}).write_rows(tmp_path / "rows.parquet", count=1)


def test_a_taskset_with_an_environment_of_its_own_is_refused(taskset, tmp_path):
    text = TASKSET.replace('__all__ = ["Sums"]', 'class Two(vf.Env):\n    pass\n\n__all__ = ["Sums", "Two"]')
    (tmp_path / "vf_two.py").write_text(text)
    with pytest.raises(UserError, match="vf_two is played in an environment of its own, Two"):
        adapter.VerifiersTools("vf_two")
    with pytest.raises(UserError, match="the verifiers taskset vf_none cannot be loaded .*: install it first"):
        adapter.VerifiersTools("vf_none")
