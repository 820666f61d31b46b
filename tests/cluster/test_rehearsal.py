"""The rehearsal's plan of faults, and what it makes of a run's record."""

from collections import Counter

import pytest

from benchmarks.cluster import faults, rehearsal
from retool_mcore.config import compose
from retool_mcore.preflight import relations
from tests.support.slurm import rehearsal_plan, slurm_faults, slurm_jobs

SUBMITTED = {
    "faults, sft": ("sft", faults.SIZES["sft"]),
    "faults, a stopped rank": ("sft", (*faults.SIZES["sft"], "watchdog_minutes=2")),
    "faults, rl": ("rl", faults.SIZES["rl"]),
    "faults, one_step_off": ("rl", faults.size("rl", "one_step_off")),
    "faults, async": ("rl", faults.size("rl", "async")),
    "rehearsal": ("rl", (*rehearsal.SIZE, *rehearsal.ONE_NODE, "data.rl.steps=40")),
    "rehearsal, 2 nodes": ("rl", (*rehearsal.SIZE, "data.rl.steps=40")),
    # A step of 5 s on the scaled clock, which is shorter than any that was seen.
    "rehearsal, its clock": ("rl", (*rehearsal.SIZE, *rehearsal.ONE_NODE, "watchdog_minutes=0.046")),
}


def test_every_phase_gets_limits_and_kills_and_every_victim_its_turn():
    planned = rehearsal_plan.plan(40, seed=1)
    assert planned == rehearsal_plan.plan(40, seed=1) != rehearsal_plan.plan(40, seed=2)
    limits = Counter(one.phase for one in planned if one.what == rehearsal_plan.LIMIT)
    kills = Counter(one.phase for one in planned if one.what != rehearsal_plan.LIMIT)
    assert set(limits) == set(kills) == set(rehearsal_plan.PHASES)
    assert min(limits.values()) >= 3 and min(kills.values()) >= 3
    assert Counter(one.what for one in planned).keys() >= set(rehearsal_plan.VICTIMS)
    # The same error twice in a row is not started again, unless a step has ended between.
    alike = [one for one, other in zip(planned, planned[1:], strict=False) if one.what == other.what]
    assert {one.phase for one in alike} <= {"push"}


def test_every_victim_and_held_part_is_known_by_its_command_line():
    assert set(rehearsal_plan.VICTIMS) | set(rehearsal.HELD) <= set(slurm_faults.PARTS)


@pytest.mark.parametrize(("stage", "words"), SUBMITTED.values(), ids=SUBMITTED)
def test_what_is_submitted_fits_together(stage, words):
    """A preflight's refusal would come only once the undisturbed run is over."""
    relations.check(stage, compose(stage, [*slurm_jobs.SIZE, *words]))


def test_what_two_starts_have_finished_is_named():
    kept = {"2": [["0/1/a", "0/2/a"], ["3/0/b"]], "3": [["0/1/a"], ["0/1/a", "3/0/b"]]}
    assert rehearsal_plan.generated_twice(kept) == ["step 3: 0/1/a"]


def test_steps_that_are_missing_and_those_that_are_there_twice():
    attempts = [{1: {}, 2: {}}, {2: {}, 4: {}}]
    assert rehearsal_plan.in_metrics(attempts, 4) == ([3], [2])
    assert rehearsal_plan.in_metrics([{1: {}}, {2: {}}], 2) == ([], [])


def test_the_largest_difference_is_relative_and_a_missing_step_infinite():
    wanted = {1: {"loss": 2.0}, 2: {"loss": 0.0}}
    assert rehearsal_plan.largest_difference({1: {"loss": 2.0}, 2: {"loss": 0.0}}, wanted, ["loss"]) == 0
    assert rehearsal_plan.largest_difference({1: {"loss": 2.2}, 2: {"loss": 0.0}}, wanted, ["loss"]) > 0.09
    assert rehearsal_plan.largest_difference({1: {"loss": 2.0}}, wanted, ["loss"]) == float("inf")
