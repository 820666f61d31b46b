"""The rehearsal's plan of faults, and what it makes of a run's record."""

from collections import Counter

from benchmarks.cluster import rehearsal
from tests.support.slurm import rehearsal_plan, slurm_faults


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
