"""Long runs and runs of many processes give way, each process once."""

from types import SimpleNamespace

import pytest

from retool_mcore.sandbox.isolation import limits
from retool_mcore.sandbox.local.watch import CROWD, give_way


@pytest.mark.parametrize("server", [0, 5, 10])
def test_processes_together_weigh_no_more_than_one(server, monkeypatch):
    monkeypatch.setattr(limits.os, "getpriority", lambda *_: server)
    assert limits.niceness(1) == min(19, server + limits.NICER)
    for count in range(2, 33):
        nice = limits.niceness(count)
        assert nice == 19 or count / 1.25**nice <= 1 / 1.25 ** (server + limits.NICER)


@pytest.mark.parametrize(("session", "first"), [(None, ["group", 10, 11, 12]), ("s", [11, 12])])
def test_a_process_is_lowered_once(session, first, monkeypatch):
    lowered = []
    monkeypatch.setattr(limits.os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(
        limits, "lower_priority", lambda which, pid, nice: lowered.append("group" if which == 1 else pid)
    )
    run = SimpleNamespace(session=session, nice=-20, lowered=set(), place=SimpleNamespace(program=10))
    for processes in ([10, 11, 12], [10, 11, 12], [10, 11]):
        give_way(run, processes)
    assert lowered == first
    give_way(run, [10, 11, 12, 13])  # further down, and so all of them
    assert lowered[len(first) :] == [pid for pid in (*first, 13)]


@pytest.mark.parametrize(("count", "bound"), [(CROWD, []), (CROWD + 1, list(range(CROWD + 1)))])
def test_a_crowd_leaves_a_processor_to_others(count, bound, monkeypatch):
    seen = []
    monkeypatch.setattr(limits, "lower_priority", lambda *_: None)
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: {2, 3, 5})
    monkeypatch.setattr(limits.os, "sched_setaffinity", lambda pid, processors: seen.append((pid, processors)))
    run = SimpleNamespace(session=None, nice=-20, lowered=set(), place=SimpleNamespace(program=0))
    give_way(run, list(range(count)))
    assert seen == [(pid, {3, 5}) for pid in bound]


def test_one_processor_serves_all(monkeypatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: {2})
    monkeypatch.setattr(limits.os, "sched_setaffinity", lambda pid, processors: seen.append(processors))
    seen = []
    limits.leave_a_processor(1)
    assert seen == [{2}]
