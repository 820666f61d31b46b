"""The task of data=toolmath: every solution is right, the splits share no structure, and a pasted chain fails."""

import asyncio
import random
import re

import pytest

from retool_mcore.data import toolmath
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local import LocalSandbox

FAMILIES = ("chain_2_4_2", "chain_5_8_3", "chainx_2_4_2", "chainx_3_6_3", "search", "product", "largest")
MIX = dict.fromkeys(FAMILIES, 1)


def run_all(programs):
    async def run():
        sandbox = LocalSandbox(preload=())
        try:
            return await asyncio.gather(*map(sandbox.run, programs))
        finally:
            await sandbox.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def drawn():
    return toolmath.items(140, 3, "train", MIX)


def test_every_program_prints_the_answer(drawn):
    assert {item.family for item in drawn} == set(FAMILIES)
    results = run_all([item.program for item in drawn])
    assert [result.stdout.strip() for result in results] == [item.answer for item in drawn]


def test_every_step_of_a_scratchpad_is_right_and_the_last_one_is_the_answer(drawn):
    for item in drawn:
        steps = re.findall(r"([-\d+*%]+)=(-?\d+)$", item.scratchpad, re.MULTILINE)
        for expression, value in steps:
            assert eval(expression) == int(value), item  # digits and operators only
        if item.family == "search":
            assert item.scratchpad.splitlines()[-1].startswith(f"{item.answer}%")
        elif item.family != "largest":
            assert steps[-1][1] == item.answer


def test_a_pasted_chain_fails_in_the_interpreter_as_the_module_says(drawn):
    chains = [item for item in drawn if item.family.startswith("chain")]
    results = run_all([item.pasted for item in chains])
    assert [result.status is Status.SUCCESS for result in results] == [toolmath.pasted_solves(item) for item in chains]
    assert sum(map(toolmath.pasted_solves, chains)) < 0.1 * len(chains)


def test_no_structure_and_no_question_is_in_two_splits_whatever_the_seed():
    made = {split: toolmath.items(400, seed, split, MIX) for seed, split in enumerate(toolmath.SPLITS)}
    for key in ("structure", "question"):
        seen = [set(getattr(item, key) for item in part) for part in made.values()]
        assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_a_trace_shows_a_program_or_a_scratchpad_and_a_failure_is_what_the_interpreter_says():
    made = toolmath.items(30, 5, "train", {"chain_2_4_2": 1})
    coded = toolmath.traces(made, 5, code_share=1.0, failed_share=1.0)
    kinds = [[segment.kind for segment in trace.segments] for trace in coded]
    assert ["code", "observation", "code", "observation", "text"] in kinds
    for item, trace, kind in zip(made, coded, kinds, strict=True):
        assert trace.segments[-2].text == item.answer and trace.segments[-3].text == item.program
        assert len(kind) == 3 or "NameError" in trace.segments[1].text
    texts = toolmath.traces(made, 5, code_share=0.0, failed_share=1.0)
    assert [trace.segments[0].text for trace in texts] == [rf"{i.scratchpad}\boxed{{{i.answer}}}" for i in made]


@pytest.mark.parametrize("family", ["chain", "chain_4_2_2", "chain_2_4_9", "chain_a_b_c", "maze", "search_2"])
def test_an_unknown_family_is_refused(family):
    with pytest.raises(UserError, match=f"names the family '{family}'"):
        toolmath.draw(family, random.Random(1))


def test_more_problems_than_a_family_holds_are_refused(monkeypatch):
    """`search` holds 1500 of this split."""
    monkeypatch.setattr(toolmath, "_DRAWS", 20)  # a tenth, which finds two thirds of them with ease
    assert len({item.question for item in toolmath.items(1000, 1, "held_back", {"search": 1})}) == 1000
    with pytest.raises(UserError, match="hold no 1501 distinct problems"):
        toolmath.items(1501, 1, "held_back", {"search": 1})
