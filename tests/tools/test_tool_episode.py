"""Several tools in one episode: prompts with schemas, parallel calls, and calls that do not fit."""

import asyncio
import json

import pytest
from chatml_tokenizer import make_tokenizer
from scripted import ScriptedEngine, ScriptedSandbox

from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import function_schema
from retool_mcore.rollout.episode import Limits, run_episode
from retool_mcore.tools.base import Reply, Tool
from retool_mcore.tools.code import CodeInterpreter
from retool_mcore.tools.recorded import ReplayTable
from retool_mcore.tools.toolbox import Toolbox

TOKENIZER = make_tokenizer()
HERMES = get_format("hermes", TOKENIZER)
EOS = TOKENIZER.eos_token_id
WIDE = Limits(max_turns=8, max_turn_tokens=900, max_response_tokens=4000, max_observation_tokens=200)
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Counter(Tool):
    """Counts in the episode's state; notes what was opened and released."""

    schema = function_schema("count", "Adds n to a counter.", NUMBER)

    def __init__(self):
        self.events = []

    async def open(self, episode):
        episode.state[self.name] = 0
        self.events.append("open")

    async def call(self, arguments, episode):
        episode.state[self.name] += arguments["n"]
        return Reply(f"total {episode.state[self.name]}")

    async def release(self, episode):
        self.events.append("release")


def say(*calls):
    return "".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>\n" for c in calls)


def named(name, **arguments):
    return {"name": name, "arguments": arguments}


def roll_out(box, *turns, row=None, limits=WIDE):
    engine = ScriptedEngine([[*TOKENIZER.encode(turn, add_special_tokens=False), EOS] for turn in turns], EOS)
    episode = run_episode(
        [1], generate=engine.generate, sandbox=None, fmt=HERMES, tokenizer=TOKENIZER, limits=limits, timeout_s=1.0,
        tools=box.for_row(row), row=row,
    )  # fmt: skip
    return asyncio.run(episode)


def observations(trajectory):
    return [TOKENIZER.decode(trajectory.response_ids[s.start : s.end]) for s in trajectory.spans if s.kind != "policy"]


def test_calls_of_several_tools_in_one_turn_are_answered_in_order():
    counter, sandbox = Counter(), ScriptedSandbox(["42\n"])
    box = Toolbox([CodeInterpreter(sandbox), counter])
    calls = [named("count", n=2), named("code_interpreter", code="print(42)"), named("count", n=3)]
    trajectory = roll_out(box, say(*calls), "done")
    first = observations(trajectory)[0]
    assert first.index("total 2") < first.index("42") < first.index("total 5")
    assert [call.tool for call in trajectory.calls] == ["count", "code_interpreter", "count"]
    assert [call.code for call in trajectory.calls] == [None, "print(42)", None]
    assert json.loads(trajectory.calls[2].arguments) == {"n": 3} and trajectory.calls[2].stdout == "total 5"
    assert (counter.events, trajectory.finish) == (["open", "release"], "answer")
    assert [note.programs for note in trajectory.turn_notes] == [3, 0]
    record = trajectory.to_record()
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize("parallel", [True, False])
def test_calls_of_a_turn_overlap_only_where_the_tool_allows_it(parallel):
    class Door(Counter):
        inside = most = 0

        async def call(self, arguments, episode):
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.01)
            self.inside -= 1
            return Reply("through")

    door = Door()
    door.parallel = parallel
    roll_out(Toolbox([door]), say(named("count", n=1), named("count", n=2)), "done")
    assert door.most == (2 if parallel else 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (named("cuont", n=1), "unknown tool 'cuont'. The tools are count, code_interpreter"),
        (named("count", n="1"), "arguments of count do not fit its schema: n: '1' is not of type 'integer'"),
        (named("count"), "'n' is a required property"),
        ({"name": "count", "arguments": "n=1"}, "must be a JSON object"),
        (
            named("code_interpreter", code=1),
            "arguments of code_interpreter do not fit its schema: code: 1 is not of type",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_one_error_and_not_run(call, words):
    counter = Counter()
    trajectory = roll_out(Toolbox([counter, CodeInterpreter(ScriptedSandbox())]), say(call), "done")
    (observation,) = observations(trajectory)
    assert words in observation and observation.count("Error:") == 1
    assert trajectory.calls[0].malformed and counter.events == [] and trajectory.finish == "answer"


def test_one_block_may_hold_a_list_or_a_line_a_call():
    both = [named("count", n=1), named("count", n=2)]
    as_list = f"<tool_call>{json.dumps(both)}</tool_call>"
    as_lines = "<tool_call>\n" + "\n".join(map(json.dumps, both)) + "\n</tool_call>"
    for turn in (as_list, as_lines):
        trajectory = roll_out(Toolbox([Counter()]), turn, "done")
        assert [json.loads(call.arguments) for call in trajectory.calls] == [{"n": 1}, {"n": 2}]
        assert "total 3" in observations(trajectory)[0]


def test_a_rows_tools_are_in_its_prompt_and_a_checked_call_ends_the_episode():
    row = {"tools": json.dumps([function_schema("weather", "Of a day.", NUMBER)])}
    box = Toolbox([], rows=ReplayTable())
    prompt = TOKENIZER.decode(HERMES.prompt_ids([{"role": "user", "content": "?"}], box.for_row(row).schemas))
    assert '"weather"' in prompt and "code_interpreter" not in prompt
    for call, malformed in ((named("weather", n=1), False), (named("weather", n="x"), True)):
        trajectory = roll_out(box, say(call), "never sampled", row=row)
        assert (trajectory.finish, trajectory.turns, trajectory.calls[0].malformed) == ("tool", 1, malformed)
        assert trajectory.calls[0].tool == "weather" and observations(trajectory) == []
        assert trajectory.response_mask == [1] * len(trajectory.response_ids)


def test_a_tool_is_released_when_the_engine_fails():
    counter = Counter()

    class Failing(ScriptedEngine):
        async def generate(self, ids, max_tokens):
            if self.requests:
                raise RuntimeError("engine gone")
            return await super().generate(ids, max_tokens)

    engine = Failing([[*TOKENIZER.encode(say(named("count", n=1)), add_special_tokens=False), EOS]], EOS)
    with pytest.raises(RuntimeError, match="engine gone"):
        asyncio.run(
            run_episode(
                [1],
                generate=engine.generate,
                sandbox=None,
                fmt=HERMES,
                tokenizer=TOKENIZER,
                limits=WIDE,
                timeout_s=1.0,
                tools=Toolbox([counter]),
            )  # fmt: skip
        )
    assert counter.events == ["open", "release"]
