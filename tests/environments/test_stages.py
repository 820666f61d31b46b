"""Stages bound what is in them, overlap over trajectories, and hold up the stage before them."""

import asyncio

import pytest

from retool_mcore.environments.stages import STAGES, Stages
from retool_mcore.errors import UserError
from retool_mcore.metrics.timeline import stage_figures


def test_stages_are_bounded_overlap_and_push_back():
    limits = {"prepare": 2, "act": 3, "score": 1}
    inside, most, ahead = dict.fromkeys(STAGES, 0), dict.fromkeys(STAGES, 0), []

    async def trajectory(stages, done):
        async with stages.passage() as passage:
            for name in STAGES:
                await passage.enter(name)
                inside[name] += 1
                most[name] = max(most[name], inside[name])
                for _ in range(5 if name == "score" else 1):
                    await asyncio.sleep(0)
                inside[name] -= 1
            done.append(passage)
            # Those who have a place but are not scored yet.
            ahead.append(sum(not slot.slot().locked() for slot in stages.limits.values()))
        return passage.spans

    async def run():
        stages, done = Stages(limits), []
        spans = await asyncio.gather(*(trajectory(stages, done) for _ in range(20)))
        assert all(not slot.slot().locked() for slot in stages.limits.values())
        return spans

    spans = asyncio.run(run())
    assert len(spans) == 20 and most["score"] == 1
    assert all(most[name] <= limits[name] for name in STAGES)
    assert all([span["stage"] for span in own] == list(STAGES) for own in spans)
    assert 0 in ahead, "the slow last stage fills those before it"


def test_a_failing_trajectory_gives_its_place_back():
    async def run():
        stages = Stages(dict.fromkeys(STAGES, 1))
        for name in STAGES:
            with pytest.raises(RuntimeError):
                async with stages.passage() as passage:
                    for stage in STAGES[: STAGES.index(name) + 1]:
                        await passage.enter(stage)
                    raise RuntimeError
        async with asyncio.timeout(5), stages.passage() as passage:
            for stage in STAGES:
                await passage.enter(stage)
        with pytest.raises(ValueError, match="does not follow"):
            async with stages.passage() as passage:
                await passage.enter("act")

    asyncio.run(run())


def test_limits_are_checked():
    with pytest.raises(UserError, match="prepare, act, score"):
        Stages({"prepare": 1, "act": 0, "score": 1})


def spans(*times):
    return [
        {"stage": stage, "asked": start - 1, "start": start, "end": end}
        for stage, start, end in zip(STAGES, times, times[1:], strict=False)
    ]


def test_figures_of_a_batch():
    alone = stage_figures([{"stages": spans(0, 1, 3, 4)}, {}])
    assert (alone["stages/act_s"], alone["stages/act_wait_s"], alone["stages/speed_up"]) == (2, 1, 1)
    # 0-1 prepare; 1-3 act and prepare; 3-5 score and act; 5-6 score.
    both = stage_figures([{"stages": spans(0, 1, 3, 5)}, {"stages": spans(1, 3, 5, 6)}])
    assert both["stages/speed_up"] == pytest.approx(10 / 6)
    assert stage_figures([{}]) == stage_figures([]) == {}
