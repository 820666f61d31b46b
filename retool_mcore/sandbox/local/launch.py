"""Starting the server's process from the trainer's."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.sandbox.local.remove import remove_tree

START_TIMEOUT_S = 300.0  # a busy machine imports what is preloaded slowly
ENDING_S = 1.0
_LINES = Path(__file__).with_name("environment.txt").read_text().splitlines()
ENVIRONMENT = dict(line.split("=", 1) for line in _LINES if line[0] != "#")
_BOOT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from retool_mcore.sandbox.local import server
del sys.path[0]
server.serve(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
"""


class KilledAtStart(Exception):
    """The server's process was killed before its hello: by the kernel for lack of memory, or by hand."""


@dataclass
class Server:
    """A running server: `process`, the socket that connections are passed over, and who may end it (`owner`)."""

    process: subprocess.Popen
    control: socket.socket
    base_dir: str
    owner: int
    zygote: int = 0

    def end(self) -> None:
        """Hang up, which ends the server, and remove what it could not if it was killed."""
        self.control.close()
        self.process.wait()
        remove_tree(self.base_dir)

    def has_ended(self) -> bool:
        """Whether its process is gone, or goes now: its sockets close before the process can be waited for."""
        try:
            self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ending(self) -> str:
        """How its process, which must have ended, did."""
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def connect(self) -> socket.socket:
        """A new connection to it. Raises OSError when it is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [b"r"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours


def launch(options: dict) -> tuple[Server, dict]:
    """Start a server and wait for its hello (see server.serve). Raises KilledAtStart, and UserError when none comes."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise UserError("The local sandbox needs Linux 5.4 or newer; set sandbox.kind=fusion and sandbox.url here.")
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    package_root = str(Path(__file__).resolve().parents[3])
    # Not by the short name of a long TMPDIR: programs run as another user, who cannot enter that folder.
    base_dir = tempfile.mkdtemp(prefix="retool-sandbox-", dir=os.path.realpath(tempfile.gettempdir()))
    options = options | {"base_dir": base_dir}
    # Nothing of ours but where shared libraries are.
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    arguments = [package_root, str(theirs.fileno()), str(os.getpid()), json.dumps(options)]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=ENVIRONMENT | libraries,
            cwd="/",
            start_new_session=True,
        )
    control.settimeout(START_TIMEOUT_S)
    try:
        message = control.recv(65536)
    except TimeoutError:
        message = b""
    if not message:
        server = Server(process, control, base_dir, os.getpid())
        killed = server.has_ended() and process.returncode < 0
        with contextlib.suppress(ProcessLookupError):  # the warm interpreter too, which has our end of stderr open
            os.killpg(process.pid, signal.SIGKILL)
        last_line = process.communicate()[1].decode("utf-8", "replace").strip().split("\n")[-1]
        server.end()
        if killed:
            raise KilledAtStart(f"the sandbox's server {server.ending()} while it started")
        raise UserError(f"The local sandbox did not start: {last_line or 'no answer'}.")
    process.stderr.close()
    hello = json.loads(message)
    return Server(process, control, base_dir, os.getpid(), hello["zygote"]), hello
