"""Long runs and runs of many processes give way, each process once."""

from types import SimpleNamespace

import pytest

from retool_mcore.sandbox.isolation import limits
from retool_mcore.sandbox.local.watch import give_way


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
