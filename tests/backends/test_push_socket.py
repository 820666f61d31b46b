"""Two runs on one machine never share the socket of a weight push; tests/e2e/test_push_ends.py: both ends of one do."""

import pytest

from retool_mcore.backends.verl import push_socket

VERL = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"  # of the first job of every Ray
LONGEST = 107  # bytes of a Unix socket's path


def test_two_runs_whose_jobs_have_one_id_have_two_sockets(monkeypatch):
    found = set()
    for stage in ("a" * 32, "b" * 32):
        monkeypatch.setenv("RETOOL_STAGE_ID", stage)
        found.add(push_socket.own(VERL))
        assert len(push_socket.own(VERL.replace("rank-0", "rank-15")).removeprefix("ipc://")) <= LONGEST
    assert len(found) == 2


def test_an_address_that_verl_does_not_make_is_refused():
    with pytest.raises(RuntimeError, match="which verl is this"):
        push_socket.own("ipc:///tmp/verl-zmq-0.sock")
