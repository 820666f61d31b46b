"""Episodes that an agent program runs: the same tokens as our own loop's, and every way in which an agent may end."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from lone_episodes import TOKENIZER, build
from scripted import ScriptedSandbox
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.backends.verl import episodes
from retool_mcore.backends.verl.agent_episodes import ATTEMPTS, AgentEpisodes
from retool_mcore.rollout.wire import from_wire

ROOT = Path(__file__).parents[2]
CALCULATOR = ROOT / "examples/agents/calculator.py"
EOS = TOKENIZER.eos_token_id
MESSAGES = [{"role": "user", "content": "6 * 7?"}]
CODE = "<code>\n```python\nprint(6 * 7)\n```\n</code>"
AGENT = {
    "name": "endpoint", "env": {}, "reward": "recipe", "on_error": "wrong", "turns": 8, "segments": 4, "tokens": None,
    "episode_s": 60.0, "grace_s": 1.0, "memory_mb": 1024, "folder_mb": 64, "processes": 16, "right_from": None,
}  # fmt: skip
ASK = f"import os, sys, json\nsys.path.insert(0, {str(CALCULATOR.parent)!r})\nfrom calculator import ask\n"
ASK += "ask([{'role': 'user', 'content': 'hello'}])\n"


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


class Server:
    """verl's client with chosen turns, the last for ever."""

    def __init__(self, *turns, error=None):
        self.turns, self.error, self.requests = turns, error, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, priority):
        if self.error:
            raise self.error
        self.requests.append((list(prompt_ids), dict(sampling_params)))
        turn = self.turns[min(len(self.requests), len(self.turns)) - 1]
        ids = turn[: sampling_params.pop("max_tokens")]
        extra = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), 10 + len(self.requests))
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=extra)


class Judge:
    """A judge's handle; gives 1 for the answer 42, else -1."""

    def __init__(self):
        self.score, self.seen = self, []

    async def remote(self, row, response_ids, facts):
        self.seen.append(facts)
        right = "42" in facts["policy_text"]
        return {"score": 1.0 if right else -1.0, "acc": float(right), "pred": "", "overlong": 0.0, "drop": ""}


def run(program, server=None, **changes):
    """(sample, facts, outcome, judge) of one episode of an agent: a program's text, or a script."""
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    server = server or Server([*encode("\\boxed{42}"), EOS])
    made = build(server, {"endpoint": AGENT | {"agent": command} | changes}, kind=AgentEpisodes)
    judge = Judge()
    row = {"raw_prompt": MESSAGES, "index": 0, "data_source": "made", "extra_info": {"question": "6 * 7?"}}

    async def whole():
        try:
            sample, facts = await made.made.run(server, "uid", 0, row, 1, {"temperature": 1.0, "logprobs": True})
            return sample, facts, await made.made.scored(judge, row, sample, facts)
        finally:
            await made.made.endpoint.stop()

    return *asyncio.run(whole()), judge


def test_the_example_has_the_tokens_and_seeds_of_our_own_loop(monkeypatch):
    turns = [encode("Let me see. " + CODE), [*encode("\\boxed{42}"), EOS]]
    monkeypatch.setattr(episodes, "create_sandbox", lambda config: ScriptedSandbox(["42\n"]))
    own_server, server = Server(*turns), Server(*turns)
    lone = build(own_server)
    place = {"index": 0, "session_id": 0, "global_steps": 1}
    own = asyncio.run(lone.run({"temperature": 1.0, "logprobs": True}, raw_prompt=MESSAGES, **place)).sample
    sample, facts, outcome, _ = run(CALCULATOR, server)
    assert server.requests == own_server.requests, "prompts, seeds and all other parameters"
    for name in ("prompt_ids", "response_ids", "response_mask", "log_probs"):
        assert getattr(sample, name).tolist() == getattr(own, name).tolist(), name
    assert (sample.finish, sample.turns, sample.versions) == (own.finish, own.turns, own.versions)
    for name in ("spans", "versions"):
        assert sample.notes[name] == own.notes[name]
    assert (sample.notes["segment"], sample.notes["segments"], sample.segments) == (0, 1, [])
    assert sample.notes["gateway"]["requests"] == 2 and sample.notes["gateway"]["attempts"] == 1
    assert facts["policy_text"] == "Let me see. \n\n\\boxed{42}" and outcome["score"] == 1.0
    record = from_wire(facts["trajectory"])
    assert record["response_ids"].tolist() == sample.response_ids.tolist()


@pytest.mark.parametrize(
    ("program", "changes", "finish", "attempts", "score"),
    [
        (ASK, {}, "answer", 1, 1.0),
        (ASK + "raise SystemExit(3)", {}, "agent_error", 1, -1.0),
        (ASK + "1/0", {}, "agent_error", 1, -1.0),
        (ASK + "sys.exit(75)", {}, "agent_error", ATTEMPTS, -1.0),
        (ASK + "os.kill(os.getpid(), 9)", {}, "agent_error", ATTEMPTS, -1.0),
        (ASK + "import time; time.sleep(60)", {"episode_s": 8.0}, "agent_timeout", 1, 1.0),
        (ASK * 3, {"turns": 2}, "max_turns", 1, 1.0),
        (ASK + ASK.replace("hello", "other"), {"segments": 1}, "segments", 1, 1.0),
        (ASK + "open(os.environ['RETOOL_RESULT'], 'w').write('{\"answer\": \"7\"}')", {}, "answer", 1, -1.0),
        (ASK + "open(os.environ['RETOOL_RESULT'], 'w').write('{')", {}, "agent_error", ATTEMPTS, -1.0),
        (ASK + "open(os.environ['RETOOL_RESULT'], 'w').write('{\"reward\": 9}')", {}, "answer", 1, 1.0),
    ],
)
def test_how_an_agent_ends(program, changes, finish, attempts, score):
    sample, facts, outcome, judge = run(program, **changes)
    assert sample.finish == finish and sample.notes["gateway"]["attempts"] == attempts
    assert outcome["score"] == score and len(judge.seen) == 1


def test_an_error_never_pays():
    class Generous(Judge):
        async def remote(self, row, response_ids, facts):
            return await super().remote(row, response_ids, facts) | {"score": 0.5, "acc": 1.0}

    made = build(Server(), {"endpoint": AGENT | {"agent": ["true"]}}, kind=AgentEpisodes).made
    sample, *_ = run(ASK + "1/0")
    facts = {"policy_text": "", "result": episodes_result()}
    outcome = asyncio.run(made.scored(Generous(), {}, sample, facts))
    assert (outcome["score"], outcome["acc"]) == (0.0, 0.0)


def episodes_result():
    from retool_mcore.gateway.agent import Result

    return Result()


@pytest.mark.parametrize("reward, right_from, acc", [(0.25, None, 0.0), (1.0, None, 1.0), (0.25, 0.2, 1.0)])
def test_the_agents_own_reward(reward, right_from, acc):
    text = json.dumps({"reward": reward, "answer": "x"})
    program = ASK + f"open(os.environ['RETOOL_RESULT'], 'w').write({text!r})"
    _, _, outcome, judge = run(program, reward="agent", right_from=right_from)
    assert (outcome["score"], outcome["acc"], outcome["pred"], outcome["graded_by"]) == (reward, acc, "x", "agent")
    assert not judge.seen
    sample, *_ = run(ASK, reward="agent")
    assert sample.finish == "agent_error" and sample.notes["gateway"]["attempts"] == ATTEMPTS, "no reward is no 0"


def test_what_leaves_nothing_to_train_on_fails_the_group():
    with pytest.raises(RuntimeError, match=f"{ATTEMPTS} attempts failed: it had no reply of the policy .*ImportError"):
        run("raise ImportError('no such package')")
    with pytest.raises(RuntimeError, match="could not be started|no reply"):
        run("", Server([EOS]), agent=["/no/such/program"])
    with pytest.raises(RuntimeError, match="exit code 3"):
        run(ASK + "sys.exit(3)", on_error="fail")
    server = Server(error=ValueError("the engine is gone"))
    with pytest.raises(ValueError, match="the engine is gone"):
        run(ASK, server)


def test_segments_are_samples_that_share_an_outcome():
    program = ASK + "ask([{'role': 'user', 'content': 'other'}])\nask([{'role': 'user', 'content': 'last'}])\n"
    server = Server([*encode("a"), EOS], [*encode("b"), EOS], [*encode("\\boxed{42}"), EOS])
    sample, _, outcome, _ = run(program, server)
    assert outcome["score"] == 1.0, "the main segment has the last reply"
    sample.outcome = outcome
    assert [TOKENIZER.decode(one.response_ids[:-1]) for one in sample.trajectories] == ["\\boxed{42}", "a", "b"]
    assert [one.notes["segment"] for one in sample.trajectories] == [0, 1, 2]
    assert all(one.outcome is outcome for one in sample.trajectories)
    assert sample.notes["gateway"]["opened"] == {"other_root": 2}
    seeds = [params["seed"] for _, params in server.requests]
    assert len(set(seeds)) == 3


def test_agents_do_not_see_each_other_or_the_answer(tmp_path):
    program = ASK + (
        "row = open(os.environ['RETOOL_ROW']).read()\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps([row, dict(os.environ), os.getcwd()]))\n"
    )
    run(program)
    row, env, folder = json.loads((tmp_path / "seen").read_text())
    assert "6 * 7?" in row and env["RETOOL_MODEL"] == "openai/policy"
    assert not Path(folder).exists(), "its folder goes with it"
