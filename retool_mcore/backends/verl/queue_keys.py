"""TransferQueue's sockets encrypt and know each other by a key of the job: it unpickles whatever reaches one of them.

Adapted place (TransferQueue 0.1.11): transfer_queue.utils.zmq_utils.create_zmq_socket, which makes all of them. One
that binds (ROUTER; the DEALER inside a storage unit never leaves its process) becomes a CURVE server, one that connects
a client. The server's key pair comes from the token of the job's Ray (env.job_secret), which all of its processes have.
No authenticator stands behind it: CURVE (rfc.zeromq.org/spec/26) never sends the server's public key, and who does not
know it cannot make the first message of a handshake.
"""

import hashlib
import hmac
import os
import sys

from retool_mcore.backends.env import JOB_SECRET
from retool_mcore.backends.import_hook import ImportHook

_PLACE = "transfer_queue.utils.zmq_utils"


def key_pair(secret: str) -> tuple[bytes, bytes]:
    """(public, secret) of the job's servers, Z85."""
    import zmq.utils.z85

    own = zmq.utils.z85.encode(hmac.digest(secret.encode(), b"TransferQueue", hashlib.sha256))
    return zmq.curve_public(own), own


def install() -> None:
    """Before TransferQueue is imported, in every process of Ray's (env.ray_runtime_env); without a secret: nothing.

    Raises RuntimeError when TransferQueue is there already, which would have sockets without a key.
    """
    if JOB_SECRET not in os.environ:
        return
    if _PLACE in sys.modules:
        raise RuntimeError("TransferQueue was imported before its sockets were given the job's key.")
    sys.meta_path.insert(0, ImportHook({}, {_PLACE: _adapt}))


def assert_in_force() -> None:
    """Raises RuntimeError when this job has a secret, and TransferQueue's sockets here would do without it."""
    from transfer_queue.utils import zmq_utils

    if JOB_SECRET in os.environ and zmq_utils.create_zmq_socket.__module__ != __name__:
        raise RuntimeError("TransferQueue's sockets have no key in this job: Ray did not run queue_keys.install.")


def _adapt(module) -> None:
    import zmq

    from retool_mcore.backends.library_patch import LibraryPatch

    if not zmq.has("curve"):
        raise RuntimeError("ZeroMQ was built without CURVE, which keeps others out of the job: install pyzmq's wheel.")
    create = LibraryPatch(module, "create_zmq_socket").stock
    public, secret = key_pair(os.environ[JOB_SECRET])
    mine = zmq.curve_keypair()

    def create_zmq_socket(ctx, socket_type, ip, identity=None):
        made = create(ctx, socket_type, ip, identity)
        if socket_type == zmq.ROUTER:
            made.curve_server, made.curve_secretkey = True, secret
        else:
            made.curve_serverkey, (made.curve_publickey, made.curve_secretkey) = public, mine
        return made

    module.create_zmq_socket = create_zmq_socket
