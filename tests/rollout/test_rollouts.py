"""Groups in flight: who gets the next, what an error is, what a dead worker's groups become. Ray is played."""

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from retool_mcore.errors import NeverWorked, UserError
from retool_mcore.rollout import rollouts as module
from retool_mcore.rollout.failures import Cause, GroupFailed
from retool_mcore.rollout.rollouts import DEATHS, Rollouts
from retool_mcore.rollout.samples import Group


class Worker:
    """An actor whose calls are remembered; `outcomes` by uid: what a call gives, or raises."""

    def __init__(self, outcomes):
        self.outcomes, self.calls = outcomes, []
        self.group = self

    def remote(self, uid, row, step, **options):
        self.calls.append((uid, row, step, options))
        return self, len(self.calls), uid


class PlayedRay:
    def wait(self, refs, num_returns, timeout):
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref):
        worker, _, uid = ref
        made = worker.outcomes.get(uid, [uid])
        if isinstance(made, Exception):
            raise made
        return made


@pytest.fixture(autouse=True)
def played(monkeypatch):
    monkeypatch.setattr(module, "ray", PlayedRay())


def task_error(cause):
    return RayTaskError("group", "traceback", cause)


def ask(rollouts, *uids):
    for uid in uids:
        rollouts.ask(Group(uid, {"number": 1}, 5), n=2)


def test_the_idlest_worker_gets_the_next_group():
    workers = [Worker({}), Worker({})]
    rollouts = Rollouts(workers, start=None)
    ask(rollouts, "a", "b", "c", "d")
    assert [[call[0] for call in worker.calls] for worker in workers] == [["a", "c"], ["b", "d"]]
    ended = rollouts.ended(None)
    assert {group.uid: group.samples for group in ended} == {uid: [uid] for uid in "abcd"}
    assert rollouts.flying == [] and set(rollouts.busy.values()) == {0}


def test_an_error_of_an_episode_fails_its_group_and_a_users_error_ends_the_run():
    rollouts = Rollouts([Worker({"a": task_error(ValueError("odd"))})], start=None)
    ask(rollouts, "a", "b")
    failed, whole = rollouts.ended(None)
    ((_, cause),) = failed.error.failures
    assert cause.described.startswith("ValueError: odd") and failed.samples == [] and whole.samples == ["b"]
    rollouts = Rollouts([Worker({"a": task_error(UserError("mend the data."))})], start=None)
    ask(rollouts, "a")
    with pytest.raises(UserError, match="mend the data"):
        rollouts.ended(None)


def failed(*numbers, line=7):
    place = f"own.py, line {line}, in reward"
    return task_error(GroupFailed([(number, Cause("KeyError", place, f"KeyError ({place})")) for number in numbers], 2))


def test_what_fails_alike_from_the_start_ends_the_step_at_once():
    rollouts = Rollouts([Worker(dict.fromkeys("abcd", failed(0, 1)))], start=None)
    ask(rollouts, *"abcd")
    with pytest.raises(
        NeverWorked, match=r"every rollout so far has failed 8 times of 8 .*: KeyError \(own.py, line 7"
    ):
        rollouts.ended(None)


@pytest.mark.parametrize(
    "other", [["b"], failed(0), failed(0, 1, line=8)], ids=["a group works", "a rollout works", "another error"]
)
def test_one_rollout_that_works_or_fails_in_another_way_stops_nothing(other):
    rollouts = Rollouts([Worker(dict.fromkeys("acd", failed(0, 1)) | {"b": other})], start=None)
    ask(rollouts, *"abcd")
    assert len(rollouts.ended(None)) == 4


def test_one_prompt_of_several_that_always_fails_stops_nothing():
    rollouts = Rollouts([Worker({"a": failed(0, 1)})], start=None)
    ask(rollouts, *"abcd")
    assert [group.uid for group in rollouts.ended(None) if group.error] == ["a"]


def test_a_dead_engine_ends_the_run_with_a_sentence():
    rollouts = Rollouts([Worker({"a": task_error(ActorDiedError())})], start=None)
    ask(rollouts, "a")
    with pytest.raises(RuntimeError, match="A rollout engine or a judge died"):
        rollouts.ended(None)


def test_a_dead_worker_is_replaced_and_asked_for_all_that_it_had(capsys):
    dead, other, new = Worker({"a": ActorDiedError(), "c": ActorDiedError()}), Worker({}), Worker({})
    rollouts = Rollouts([dead, other], start=lambda: new)
    ask(rollouts, "a", "b", "c", "d")
    assert {group.uid for group in rollouts.ended(None)} == {"b", "d"}
    assert {group.uid for group in rollouts.flying} == {"a", "c"}, "neither lost nor twice in flight"
    asked_again = [call for worker in (new, other) for call in worker.calls if call[0] in "ac"]
    assert sorted(asked_again) == [("a", {"number": 1}, 5, {"n": 2}), ("c", {"number": 1}, 5, {"n": 2})]
    assert {group.uid for group in rollouts.ended(None)} == {"a", "c"}
    assert dead not in rollouts.busy and set(rollouts.busy.values()) == {0}
    assert "its 2 groups are asked for again" in capsys.readouterr().out


def test_workers_that_die_again_and_again_end_the_run():
    rollouts = Rollouts([Worker({"a": ActorDiedError()})], start=lambda: Worker({"a": ActorDiedError()}))
    ask(rollouts, "a")
    for _ in range(DEATHS):
        assert rollouts.ended(None) == []
    with pytest.raises(RuntimeError, match=f"{DEATHS + 1} rollout workers died"):
        rollouts.ended(None)
