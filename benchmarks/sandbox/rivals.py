"""Ways to run a program, for benchmarks/sandbox/speed.py: each a class with `start`, `run(code) -> stdout` and `close`.

`Subprocess` does what SandboxFusion does at `isolation: none`: a temporary folder, the code in a file, a shell that
starts `python` on it. `Bubblewrap` puts a namespace sandbox around the same interpreter. `Fork` forks a warm
interpreter with no isolation, limits or cleaning up at all: the floor. `Fusion` is a running SandboxFusion service.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import aiohttp

from retool_mcore.sandbox.local import LocalSandbox

TIMEOUT_S = 300.0


class Ours:
    """The local back-end at the strongest level, without HTTP."""

    name = "retool"

    def __init__(self, clients: int):
        self.box = LocalSandbox(timeout_s=TIMEOUT_S, workers=clients)

    async def start(self) -> None:
        await self.box.start()
        await asyncio.gather(*[self.run("1") for _ in range(4)])

    async def run(self, code: str) -> str:
        result = await self.box.run(code)
        if result.status != "success":
            raise RuntimeError(f"{result.status}: {result.stderr[-200:]}")
        return result.stdout

    async def close(self) -> None:
        await self.box.close()


class Subprocess:
    name = "subprocess"

    async def start(self) -> None:
        await self.run("1")

    async def run(self, code: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(code)
            process = await asyncio.create_subprocess_shell(
                f"{sys.executable} {path}", stdin=-3, stdout=-1, stderr=-1, cwd=folder, executable="/bin/bash"
            )
            return await _output(process)

    async def close(self) -> None:
        """Nothing to release."""


class Bubblewrap:
    name = "bubblewrap"

    def __init__(self):
        # The empty /tmp comes first, because some hosts keep this Python below it.
        shown = [part for path in (sys.prefix, sys.base_prefix) for part in ("--ro-bind", path, path)]
        alone = ["--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
        links = [part for name in ("bin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")]
        self.command = ["bwrap", *alone, *links, "--tmpfs", "/tmp", *shown, sys.executable, "-c"]

    async def start(self) -> None:
        if shutil.which("bwrap") is None:
            raise RuntimeError("bubblewrap is not installed")
        await self.run("1")

    async def run(self, code: str) -> str:
        return await _output(await asyncio.create_subprocess_exec(*self.command, code, stdin=-3, stdout=-1, stderr=-1))

    async def close(self) -> None:
        """Nothing to release."""


_WARM = """
import os, signal, socket, sys
import numpy, scipy, sympy
control = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
control.send(b"ready")
while True:
    code, fds, _, _ = socket.recv_fds(control, 1 << 20, 1)
    if not code:
        break
    if os.fork() == 0:
        os.dup2(fds[0], 1)
        os.closerange(3, 256)
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    os.close(fds[0])
"""


class Fork:
    name = "plain fork"

    async def start(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _WARM, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        await asyncio.to_thread(self.control.recv, 5)

    async def run(self, code: str) -> str:
        reader, writer = os.pipe()
        socket.send_fds(self.control, [code.encode()], [writer])
        os.close(writer)
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb")
        )
        with contextlib.closing(transport):
            return (await stream.read()).decode()

    async def close(self) -> None:
        self.control.close()
        await asyncio.to_thread(self.process.wait)


class Fusion:
    name = "SandboxFusion"

    def __init__(self, url: str):
        self.url = url.rstrip("/") + "/run_code"

    async def start(self) -> None:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        await self.run("print(1)")

    async def run(self, code: str) -> str:
        body = {"code": code, "language": "python", "run_timeout": TIMEOUT_S}
        async with self.session.post(self.url, json=body, timeout=aiohttp.ClientTimeout(2 * TIMEOUT_S)) as response:
            reply = await response.json()
        if reply.get("status") != "Success":
            raise RuntimeError(str(reply)[:200])
        return reply["run_result"]["stdout"]

    async def close(self) -> None:
        await self.session.close()


async def _output(process: asyncio.subprocess.Process) -> str:
    stdout, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}: {stderr[-200:]}")
    return stdout.decode()
