"""ARTIST (arXiv 2505.01441) with several tools: its reward on episodes that were really rolled out."""

import asyncio
import json

import pytest
from chatml_tokenizer import make_tokenizer
from scripted import ScriptedEngine, ScriptedSandbox

from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import function_schema
from retool_mcore.rewards.artist import artist
from retool_mcore.rewards.sample import read_sample
from retool_mcore.rollout.episode import Limits, run_episode
from retool_mcore.rollout.wire import to_wire
from retool_mcore.tools.base import Reply, Tool
from retool_mcore.tools.code import CodeInterpreter
from retool_mcore.tools.toolbox import Toolbox

TOKENIZER = make_tokenizer()
HERMES = get_format("hermes", TOKENIZER)
EOS = TOKENIZER.eos_token_id
LIMITS = Limits(max_turns=8, max_turn_tokens=900, max_response_tokens=4000, max_observation_tokens=200)


class Capital(Tool):
    schema = function_schema(
        "capital", "", {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
    )

    async def call(self, arguments, episode):
        return Reply({"Italy": "Rome"}[arguments["of"]])


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


CODE, KNOWN, UNKNOWN = call("code_interpreter", code="print(1)"), call("capital", of="Italy"), call("capital", of="Mu")
MISSPELT = call("capital", off="Italy")


def reward(*turns, acc):
    engine = ScriptedEngine([[*HERMES.encode(turn), EOS] for turn in turns], EOS)
    episode = run_episode(
        [1],
        generate=engine.generate,
        sandbox=None,
        fmt=HERMES,
        tokenizer=TOKENIZER,
        limits=LIMITS,
        timeout_s=1.0,
        tools=Toolbox([CodeInterpreter(ScriptedSandbox(["1\n"] * 9)), Capital()]),
    )
    record = asyncio.run(episode).to_record()
    return artist(read_sample(to_wire(record), text="", acc=acc, ground_truth="x", step=1))


@pytest.mark.parametrize(
    ("turns", "acc", "expected"),
    [
        # answer 2 + box 0.25 + whole blocks 0.25 + successful calls / all calls
        ((CODE + KNOWN, "\\boxed{x}"), 1.0, 2 + 0.25 + 0.25 + 1),
        ((CODE, UNKNOWN, KNOWN + KNOWN, "\\boxed{x}"), 1.0, 2 + 0.25 + 0.25 + 3 / 4),
        ((KNOWN, MISSPELT, "\\boxed{y}"), 0.0, 0.25 + 1 / 2),
        ((KNOWN, "\n<tool_response>\nParis\n</tool_response> \\boxed{y}"), 0.0, 0.25 + 1),
        (("\\boxed{x}",), 1.0, 2 + 0.25 + 0.25),
    ],
)
def test_the_reward_over_calls_of_several_tools(turns, acc, expected):
    assert reward(*turns, acc=acc) == pytest.approx(expected)
