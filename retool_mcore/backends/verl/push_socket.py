"""The socket of a weight push belongs to its run alone.

verl 0.9.1 names it by Ray's job id, which it takes for unique on a host (vllm_rollout.py:140). But every run here has a
Ray of its own, whose first job has the same id as every other's: of two runs on one machine the engine of one reads
what the trainer of the other sends, or both wait for ever. Seen with twelve runs on one GPU: three of them ended so
within six pushes. The stage's id, 122 random bits that all of its processes know, takes the job's place.

Importing this module puts the sender that uses it (weight_sync_vllm.py) into verl's registry of rollouts.
"""

import hashlib
import os
import tempfile

from verl.workers.rollout import base

_OF_VERL = "ipc:///tmp/rl-colocate-zmq-"

base._ROLLOUT_REGISTRY["vllm", "async"] = "retool_mcore.backends.verl.weight_sync_vllm.OwnSocketAdapter"


def own(handle: str) -> str:
    """verl's address of a push, with the stage's id put into it. Raises RuntimeError for one that verl 0.9.1 does not
    make."""
    if not handle.startswith(_OF_VERL):
        raise RuntimeError(f"verl's weight push listens at {handle}, expected {_OF_VERL}...: which verl is this?")
    name = f"{os.environ['RETOOL_STAGE_ID']}-{handle.removeprefix(_OF_VERL)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:20]  # a socket's path is short
    return f"ipc://{tempfile.gettempdir()}/retool-push-{digest}"
