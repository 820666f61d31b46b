"""Two runs on one machine never share the socket of a weight push, and both ends of one run do."""

import subprocess
import sys

import pytest

from retool_mcore.backends.env import stage_env
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


def run(program: str) -> list[str]:
    """The lines that a process of a stage on this machine prints: vLLM's and verl's parts need its environment."""
    env = stage_env({"parallel": {"device": "cpu"}}) | {"RETOOL_STAGE_ID": "c" * 32}
    env |= {"VERL_RAY_JOB_ID": "01000000", "VERL_REPLICA_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_engine_listens_where_the_trainer_sends():
    program = f"""
from types import SimpleNamespace
from verl.workers.rollout import get_rollout_class
from verl.workers.rollout.vllm_rollout import ServerAdapter
from retool_mcore.backends.verl.weight_sync_vllm import VerifyingExtension

ServerAdapter.__init__ = lambda self: setattr(self, "zmq_handle", {VERL!r})
worker = type("Worker", (VerifyingExtension,), {{"local_rank": 0, "model_runner": SimpleNamespace()}})
print(worker._get_zmq_handle(worker.__new__(worker)))
print(get_rollout_class("vllm", "async")().zmq_handle)
"""
    listens, sends = run(program)[-2:]
    assert listens == sends == f"ipc:///tmp/retool-push-{'c' * 32}-01000000-replica-0-rank-0.sock"


@pytest.mark.parametrize("module", ["weight_sync", "host_weights"])
def test_every_process_that_sends_registers_the_sender(module):
    """weight_sync: the trainer's, beside the engine; host_weights: the one beside an engine elsewhere."""
    program = f"""
import retool_mcore.backends.verl.{module}
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
print(_ROLLOUT_REGISTRY["vllm", "async"])
"""
    assert run(program)[-1] == "retool_mcore.backends.verl.weight_sync_vllm.OwnSocketAdapter"
