"""Groups in flight: who gets the next, what an error is, what a dead worker's groups become. Ray is played."""

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from retool_mcore.errors import UserError
from retool_mcore.rollout import rollouts as module
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
    assert isinstance(failed.error, RayTaskError) and failed.samples == [] and whole.samples == ["b"]
    rollouts = Rollouts([Worker({"a": task_error(UserError("mend the data."))})], start=None)
    ask(rollouts, "a")
    with pytest.raises(UserError, match="mend the data"):
        rollouts.ended(None)


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
