"""An episode on a client of verl's: what the trainer and the reward get of it, and what it asks of the engine."""

import asyncio
import json

import pytest
from lone_episodes import TOKENIZER, build
from scripted import ScriptedSandbox
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.backends.verl import episodes
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.rollout.seeds import DRAW
from retool_mcore.rollout.trajectory import Version
from retool_mcore.rollout.wire import from_wire

EOS = TOKENIZER.eos_token_id
CODE = "<code>\n```python\nprint(6 * 7)\n```\n</code>"
MESSAGES = [{"role": "user", "content": "6 * 7?"}]


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


class Server:
    """verl's LLMServerClient with chosen answers. Like verl's vLLM server it pops keys from the parameters it gets."""

    def __init__(self, turns, stop_reason="completed", logprobs=True):
        self.turns, self.stop_reason, self.logprobs = turns, stop_reason, logprobs
        self.requests, self.priorities = [], []

    async def generate(self, request_id, *, prompt_ids, sampling_params, priority):
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        self.priorities.append(priority)
        step = 10 + len(self.requests)
        ids = self.turns[len(self.requests) - 1][: sampling_params.pop("max_tokens")]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if self.logprobs else None,
            stop_reason=self.stop_reason,
            num_preempted=1,
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )


@pytest.fixture
def sandbox(monkeypatch):
    made = []

    def create(config):
        made.append((config, ScriptedSandbox(["42\n"] * 9)))
        return made[-1][1]

    monkeypatch.setattr(episodes, "create_sandbox", create)
    return made


def run(server, settings=None, rollout=None, messages=MESSAGES, **sample):
    return run_of(build(server, settings, rollout), messages, **sample)


def run_of(lone, messages=MESSAGES, **sample):
    place = {"index": 0, "session_id": 0, "global_steps": 1, **sample}
    return asyncio.run(lone.run({"temperature": 1.0, "logprobs": True}, raw_prompt=messages, **place))


def test_a_sample_is_what_is_trained_on_and_the_facts_are_what_the_reward_sees(sandbox):
    server = Server([encode(CODE), [*encode("\\boxed{42}"), EOS]])
    output = run(server)
    turn, answer = encode(CODE), [*encode("\\boxed{42}"), EOS]
    observation = encode("\n<interpreter>\n42\n</interpreter>\n")
    assert output.response_ids == turn + observation + answer
    assert output.response_mask == [1] * len(turn) + [0] * len(observation) + [1] * len(answer)
    assert output.log_probs == [-0.5 * m for m in output.response_mask]
    assert output.sample.turns == 4 and output.sample.finish == "answer" and output.sample.versions == (11, 12)
    trajectory = output.facts.pop("trajectory")
    assert output.facts == {
        "policy_text": "\n\n\\boxed{42}",
        "prefill": "",
        "response_length": len(output.response_ids),
        "training_step": 1,
    }
    record = from_wire(trajectory)
    assert output.notes == {name: record[name] for name in output.notes}
    assert record["response_ids"].tolist() == output.response_ids and record["prompt_ids"].tolist() == output.prompt_ids
    assert record["logprobs"].tolist() == output.log_probs
    end = len(output.response_ids)
    versions = [Version(**version) for version in record["versions"]]
    assert versions == [Version(11, 0, len(turn)), Version(12, end - len(answer), end)]
    assert record["calls"][0]["code"] == "print(6 * 7)"
    assert [(turn["programs"], turn["boxed"]) for turn in record["turn_notes"]] == [(1, False), (0, True)]


def test_all_turns_are_one_session_within_the_budget(sandbox):
    server = Server([encode(CODE), [EOS]])
    output = run(server)
    (first_id, first_prompt, first), (second_id, second_prompt, second) = server.requests
    assert first_id == second_id
    assert first_prompt == output.prompt_ids
    assert second_prompt == output.prompt_ids + output.response_ids[:-1]
    assert (first["stop"], first["include_stop_str_in_output"], first["stop_token_ids"]) == (["</code>"], True, [EOS])
    assert (first["max_tokens"], second["max_tokens"]) == (100, 100)
    assert (first["temperature"], first["logprobs"]) == (1.0, True)
    wide = {"limits": {"max_turns": 4, "max_turn_tokens": 1000, "max_observation_tokens": 64}}
    server = Server([encode(CODE), [EOS]])
    output = run(server, wide)
    assert [request[2]["max_tokens"] for request in server.requests] == [300, 300 - len(output.response_ids) + 1]


def test_an_engine_works_at_the_groups_of_the_oldest_step_first(sandbox):
    server = Server([encode(CODE), [EOS]])
    run(server, global_steps=7)
    assert server.priorities == [7, 7]
    # vLLM refuses a priority where it schedules by arrival.
    assert compose("rl", ["pipeline=one_step_off"]).verl.actor_rollout_ref.rollout.scheduling_policy == "priority"


def test_one_sandbox_serves_all_episodes_of_a_process(sandbox):
    lone = build(Server([encode(CODE), [EOS]] * 2))
    for _ in range(2):
        run_of(lone)
    assert [config for config, _ in sandbox] == [{"kind": "local", "workers": 1}]


def test_every_sample_has_the_same_facts(sandbox):
    called = run(Server([encode(CODE), [EOS]]))
    silent = run(Server([[EOS]], logprobs=False))
    text_only = run(Server([[EOS]]), {"format": "none"})
    assert called.facts.keys() == silent.facts.keys() == text_only.facts.keys()
    assert silent.log_probs == [] and text_only.notes["calls"] == []


def test_hermes_prompts_carry_the_tool(sandbox):
    output = run(Server([[EOS]]), {"format": "hermes"}, {"prompt_length": 600})
    assert "code_interpreter" in TOKENIZER.decode(output.prompt_ids)


def test_a_rows_own_tools_are_listed_and_its_call_ends_the_episode(sandbox):
    """By the row's extra_info, a dict of the parquet's values."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"type": "function", "function": {"name": "weather", "description": "", "parameters": parameters}}
    entry = {"format": "hermes", "toolbox": {"use": [{"path": "retool_mcore.tools.recorded.ReplayTable"}]}}
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    turn = [*encode(f"<tool_call>\n{json.dumps([call, call])}\n</tool_call>"), EOS]
    output = run(Server([turn]), entry, {"prompt_length": 600}, extra_info={"index": 0, "tools": json.dumps([weather])})
    prompt = TOKENIZER.decode(output.prompt_ids)
    assert '"weather"' in prompt and "code_interpreter" not in prompt
    assert (output.response_ids, output.response_mask) == (turn, [1] * len(turn))
    assert output.sample.finish == "tool" and len(output.notes["calls"]) == 2
    first = output.notes["calls"][0]
    assert (first["tool"], json.loads(first["arguments"]), first["code"]) == ("weather", {"city": "Rome"}, None)


def test_what_cannot_run_is_refused(sandbox):
    with pytest.raises(UserError, match="prompt_length=200"):
        run(Server([[EOS]]), messages=[{"role": "user", "content": "6 * 7? " * 200}])
    with pytest.raises(UserError, match="response_length=300"):
        limits = {"max_turns": 4, "max_turn_tokens": 100, "max_observation_tokens": 64, "max_response_tokens": 301}
        run(Server([[EOS]]), {"limits": limits})
    with pytest.raises(RuntimeError, match="aborted turn 0"):
        run(Server([encode("so")], stop_reason="aborted"))


def test_every_turn_has_a_seed_of_its_own_that_a_second_run_repeats(sandbox):
    def seeds(**sample):
        server = Server([encode(CODE), [EOS]])
        run(server, **sample)
        return [request[2]["seed"] for request in server.requests]

    places = [{}, {"session_id": 1}, {"index": 1}, {"global_steps": 2}, {DRAW: 1}, {DRAW: 2}]
    drawn = [seed for place in places for seed in seeds(**place)]
    assert len(set(drawn)) == 2 * len(places)
    assert drawn == [seed for place in places for seed in seeds(**place)]
