"""Two runs on one machine never share the socket of a weight push, and both ends of one run do."""

import os
import subprocess
import sys
from types import SimpleNamespace

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


def test_the_engine_listens_where_the_trainer_sends(monkeypatch):
    from verl.workers.rollout import get_rollout_class
    from verl.workers.rollout.vllm_rollout import ServerAdapter

    from retool_mcore.backends.verl.weight_sync_vllm import OwnSocketAdapter, VerifyingExtension

    monkeypatch.setenv("RETOOL_STAGE_ID", "c" * 32)
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    monkeypatch.setenv("VERL_REPLICA_RANK", "0")
    monkeypatch.delenv("VERL_ZMQ_BASE_TRAINER_RANK", raising=False)
    monkeypatch.setattr(ServerAdapter, "__init__", lambda self: setattr(self, "zmq_handle", VERL))
    assert get_rollout_class("vllm", "async") is OwnSocketAdapter
    worker = type("Worker", (VerifyingExtension,), {"local_rank": 0, "model_runner": SimpleNamespace()})
    assert worker._get_zmq_handle(worker.__new__(worker)) == OwnSocketAdapter().zmq_handle != VERL


@pytest.mark.parametrize("module", ["weight_sync", "host_weights"])
def test_every_process_that_sends_registers_the_sender(module):
    """weight_sync: the trainer's, beside the engine; host_weights: the one beside an engine elsewhere."""
    program = f"""
import retool_mcore.backends.verl.{module}
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
print(_ROLLOUT_REGISTRY["vllm", "async"])
"""
    run = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1].endswith("weight_sync_vllm.OwnSocketAdapter")
