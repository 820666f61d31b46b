"""An episode in a repository: tool calls of a scripted policy, a real sandbox, the tests' verdict."""

import asyncio
import json

import pytest
from lone_episodes import TOKENIZER, build
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.config import compose
from retool_mcore.environments.repository import Check, RepositoryTask
from retool_mcore.errors import UserError
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.local import LocalSandbox

TEST = (
    "import unittest\nfrom pkg.core import double\n\n\nclass TestCore(unittest.TestCase):\n"
    "    def test_double(self):\n        self.assertEqual(double(3), 6)\n"
)
TASK = RepositoryTask(
    "double(5) gives 7, expected 10.",
    {"pkg/__init__.py": "", "pkg/core.py": "def double(n):\n    return n + 2\n", "tests/test_core.py": TEST}
    | {"tests/__init__.py": ""},
    (Check("from pkg.core import double", "double(5)", "10"),),
)
ROW = {"index": 0, "session_id": 0, "global_steps": 1, "extra_info": {"repository": TASK.to_json()}}


class Server:
    def __init__(self, *turns):
        self.turns = list(turns)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        text = self.turns.pop(0) if self.turns else "Done."
        ids = [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={})


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(server, row=ROW):
    entry = {
        "environment": "repository",
        "stages": {"prepare": 1, "act": 1, "score": 1},
        "format": "hermes",
        "limits": {"max_turns": 50, "max_turn_tokens": 800, "max_observation_tokens": 600},
        "sandbox": {"kind": "local", "workers": 2, "preload": []},
        "timeout_s": 20.0,
        "toolbox": {"use": [{"path": "retool_mcore.environments.tools.RepositoryTools", "args": {}}], "timeout_s": 30},
    }
    rollout = {"prompt_length": 9000, "response_length": 9000}

    async def main():
        lone = build(server, entry, rollout)
        try:
            return await lone.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": TASK.issue}], **row)
        finally:
            await lone.made.sandbox.close()

    return asyncio.run(main())


def test_a_policy_that_fixes_the_bug_is_right_and_its_stages_are_told():
    fix = call("replace", path="pkg/core.py", old="n + 2", new="2 * n")
    output = run(Server(call("view", path="pkg/core.py"), fix, call("run_tests"), call("submit")))
    record = output.notes
    assert [one["tool"] for one in record["calls"]] == ["view", "replace", "run_tests", "submit"]
    assert record["calls"][0]["stdout"] == "1 def double(n):\n2     return n + 2"
    assert record["calls"][2]["status"] == "success" and record["calls"][2]["stdout"].endswith("OK")
    assert output.sample.finish == "tool", "submit ends the episode"
    assert output.facts["verdict"] == 1.0
    spans = output.sample.stages
    assert [span["stage"] for span in spans] == ["prepare", "act", "score"]
    assert all(span["asked"] <= span["start"] <= span["end"] for span in spans)
    # What the reward makes of it.
    recipe = OmegaConf.to_container(compose("rl", ["recipe=skyrl", "data=repo_bugs"]).recipe)
    score = compute_score("repo_bugs", "", "a bug", output.facts, recipe, max_response_tokens=9000)
    assert (score["score"], score["acc"], score["drop"]) == (1.0, 1.0, "")


def test_a_policy_that_only_talks_is_wrong():
    output = run(Server("The code is right."))
    assert (output.facts["verdict"], output.sample.finish) == (0.0, "answer")


@pytest.mark.parametrize("working_runs, turns", [(1, [call("view", path="pkg/core.py")]), (2, [])])
def test_trouble_of_the_sandbox_is_the_trajectorys_end_also_while_scoring(monkeypatch, working_runs, turns):
    """The first run is of the tests before the policy acts; those after it fail, or the second of them."""
    runs, real = [], LocalSandbox.run

    async def failing(self, code, **options):
        runs.append(code)
        if len(runs) > working_runs:
            return Result(Status.SANDBOX, "", "the sandbox failed", None, 0.0)
        return await real(self, code, **options)

    monkeypatch.setattr(LocalSandbox, "run", failing)
    fix = call("replace", path="pkg/core.py", old="n + 2", new="2 * n")
    output = run(Server(*turns, fix, "Done."))
    assert len(runs) > working_runs
    assert (output.facts["verdict"], output.sample.finish) == (0.0, "sandbox_error")


def test_a_row_without_a_repository_is_refused():
    with pytest.raises(UserError, match="data=repo_bugs"):
        run(Server(), ROW | {"extra_info": {}})
