"""Both ends of a weight push have the same socket, and every process that sends registers the sender."""

import tempfile

import pytest
from forked_programs import lines_printed, started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VERL = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"  # of the first job of every Ray
SENDERS = ("weight_sync", "host_weights")  # the trainer's, beside the engine; the one beside an engine elsewhere
PROGRAMS = {
    "both ends": f"""
from types import SimpleNamespace
from verl.workers.rollout import get_rollout_class
from verl.workers.rollout.vllm_rollout import ServerAdapter
from retool_mcore.backends.verl.weight_sync_vllm import VerifyingExtension

ServerAdapter.__init__ = lambda self: setattr(self, "zmq_handle", {VERL!r})
worker = type("Worker", (VerifyingExtension,), {{"local_rank": 0, "model_runner": SimpleNamespace()}})
print(worker._get_zmq_handle(worker.__new__(worker)))
print(get_rollout_class("vllm", "async")().zmq_handle)
"""
} | {
    module: f"""
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
print(_ROLLOUT_REGISTRY["vllm", "async"])
import retool_mcore.backends.verl.{module}
print(_ROLLOUT_REGISTRY["vllm", "async"])
"""
    for module in SENDERS
}


@pytest.fixture(scope="module")
def printed(shared_template) -> dict[str, list[str]]:
    more = {"RETOOL_STAGE_ID": "c" * 32, "VERL_RAY_JOB_ID": "01000000", "VERL_REPLICA_RANK": "0"}
    return lines_printed({name: started(program, **more) for name, program in PROGRAMS.items()})


def test_the_engine_listens_where_the_trainer_sends(printed):
    listens, sends = printed["both ends"][-2:]
    assert listens == sends and listens.startswith(f"ipc://{tempfile.gettempdir()}/retool-push-")


@pytest.mark.parametrize("module", SENDERS)
def test_every_process_that_sends_registers_the_sender(module, printed):
    before, *_, after = printed[module]
    assert before != after == "retool_mcore.backends.verl.weight_sync_vllm.OwnSocketAdapter"
