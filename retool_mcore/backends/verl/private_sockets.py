"""What a job opens to itself alone: TransferQueue, which unpickles whatever reaches it, and vLLM's HTTP server.

Adapted places:
- transfer_queue.utils.zmq_utils.create_zmq_socket (TransferQueue 0.1.11), which makes all of its sockets. One that
  binds (ROUTER; the DEALER inside a storage unit never leaves its process) becomes a CURVE server, one that connects a
  client. The server's key pair comes from the token of the job's Ray (env.job_secret), which all of its processes have.
  No authenticator stands behind it: CURVE (rfc.zeromq.org/spec/26) never sends the server's public key, and who does
  not know it cannot make the first message of a handshake.
- verl.workers.rollout.utils.run_uvicorn (verl 0.9.1): engines are asked through Ray, nobody needs their HTTP server,
  so it stays on loopback.
"""

import hashlib
import hmac
import os
import sys

from retool_mcore.backends.env import JOB_SECRET
from retool_mcore.backends.import_hook import ImportHook

_QUEUE, _HTTP = "transfer_queue.utils.zmq_utils", "verl.workers.rollout.utils"


def install() -> None:
    """In every process of Ray's (env.ray_runtime_env), before it imports anything of theirs.

    Raises RuntimeError when TransferQueue is there already, which would have sockets without a key.
    """
    if _QUEUE in sys.modules:
        raise RuntimeError("TransferQueue was imported before its sockets were given the job's key.")
    queue = {_QUEUE: _with_key} if JOB_SECRET in os.environ else {}
    sys.meta_path.insert(0, ImportHook({}, queue | {_HTTP: _on_loopback}))


def assert_in_force() -> None:
    """Raises RuntimeError when this job has a secret, and TransferQueue's sockets here would do without it."""
    from transfer_queue.utils import zmq_utils

    if JOB_SECRET in os.environ and zmq_utils.create_zmq_socket.__module__ != __name__:
        raise RuntimeError("TransferQueue's sockets have no key in this job: Ray did not run private_sockets.install.")


def _with_key(module) -> None:
    import zmq.utils.z85

    from retool_mcore.backends.library_patch import LibraryPatch

    if not zmq.has("curve"):
        raise RuntimeError("ZeroMQ was built without CURVE, which keeps others out of the job: install pyzmq's wheel.")
    create = LibraryPatch(module, "create_zmq_socket").stock
    digest = hmac.digest(os.environ[JOB_SECRET].encode(), b"TransferQueue", hashlib.sha256)
    secret, own = zmq.utils.z85.encode(digest), zmq.curve_keypair()

    def create_zmq_socket(ctx, socket_type, ip, identity=None):
        made = create(ctx, socket_type, ip, identity)
        if socket_type == zmq.ROUTER:
            made.curve_server, made.curve_secretkey = True, secret
        else:
            made.curve_serverkey = zmq.curve_public(secret)
            made.curve_publickey, made.curve_secretkey = own
        return made

    module.create_zmq_socket = create_zmq_socket


def _on_loopback(module) -> None:
    from retool_mcore.backends.library_patch import LibraryPatch

    serve = LibraryPatch(module, "run_uvicorn").stock
    module.run_uvicorn = lambda app, server_args, address: serve(app, server_args, "127.0.0.1")
