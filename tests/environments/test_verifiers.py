"""Environments of the package verifiers; without it (it is no dependency) only what is said then is tested."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from recipe_samples import sample as make_sample

from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.environments import verifiers as adapter
from retool_mcore.errors import UserError
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
PATH = "retool_mcore.environments.verifiers.VerifiersTools"


@pytest.fixture
def sums(tmp_path, monkeypatch):
    pytest.importorskip("verifiers")
    (tmp_path / "vf_sums.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    adapter._load.cache_clear()
    yield "vf_sums"
    sys.modules.pop("vf_sums", None)


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
    truth = row["reward_model"]["ground_truth"]
    ended = replace(make_sample(ground_truth=truth), calls=[call], policy_text="It is 3")
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
