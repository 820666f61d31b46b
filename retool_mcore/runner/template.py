"""A process that has imported the libraries once, and forks every Python process of a stage from itself.

A stage of RL has ten Python processes and more (the trainer, Ray's workers, vLLM's engine), and each of them
imports torch, transformers, verl and vLLM: most of what a start takes. `forked` starts a template next to a
stage and yields the variables with which its processes are forked: `forked_python.py` stands for `python` there, asks
the template by a Unix socket, and lends the child its descriptors, environment and folder.

A child is as a process that was started: a session of its own, the interpreter's state of before any program, its
own random numbers, its command as its title, and RETOOL_STAGE_ID where /proc shows it (processes.py). It dies with the
template, and when the one that stands for it is killed. The template has one thread when it forks and has not touched
CUDA; both are asserted.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from retool_mcore.backends import forked_python, ray_titles
from retool_mcore.backends.env import COMMON, CPU, GPU, forks, on_cpu, stage_env, template_of
from retool_mcore.backends.forked_python import MOST_DESCRIPTORS, PYTHON, RAY_WORKER, SOCKET, program_of
from retool_mcore.runner import processes

# What the processes of a stage have in common, imported once by the template from which they are forked. No module here
# may import Ray, whose library reads its process's place in the cluster from the environment once, when it is loaded,
# or adapt torch to its process (backends/cpu/torch_cpu.py).
MODULES: dict[str, list[str]] = {
    "both": [
        "torch.distributed.checkpoint",
        "torch._dynamo",
        "torch.utils.tensorboard",
        "tensordict",
        "transformers.models.auto.modeling_auto",
        "transformers.models.qwen2.modeling_qwen2",
        "datasets",
        "peft",
        "scipy.stats",
        "sympy",
        "hydra",
        "uvicorn",
        "fastapi",
        "aiohttp",
        "openai",
        "pydantic.v1",
    ],
    "cpu": [
        "model_hosting_container_standards.sagemaker",
        "compressed_tensors",
        "vllm.engine.arg_utils",
        "vllm.v1.core.sched.scheduler",
        "megatron.core.models.gpt",
        "mbridge",
        "vllm.model_executor.kernels.linear",
        "vllm.v1.worker.cpu_model_runner",
        "vllm.model_executor.models.mixtral",
        "vllm.model_executor.models.qwen2_moe",
        "vllm.entrypoints.openai.responses.protocol",
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.anthropic.protocol",
        "vllm.entrypoints.pooling.embed.protocol",
        "vllm.entrypoints.pooling.scoring.protocol",
        "sympy.combinatorics",
    ],
    # Neither Megatron nor vLLM: Transformer Engine and NVML ask for the devices when they are imported.
    "cuda": [],
}
VARIABLES = (SOCKET, PYTHON, "PYTHON_EXEC")  # the last is by what torchrun starts its ranks
TITLE_ROOM = 1024  # bytes of the command line, so that a title never runs over the environment behind it
_NO_STAGE = "0" * 128  # room for the mark of a stage, which replaces it in every child


class Refused(Exception):
    """The client's environment asks for other imports than the template's."""


@contextmanager
def forked(env: Mapping[str, str], command: Sequence[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Run a template during a stage; yields the environment and command with which the stage's processes are forked.

    Both stay as they are where nothing is to be forked. A template that the environment names is used and left alone.
    """
    if not forks(env):
        yield dict(env), list(command)
        return
    with ExitStack() as stack:
        if template_of(env) is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="retool-template-", dir=env.get("TMPDIR")))
            env = {**env, **_started(Path(folder), env, stack)}
        yield dict(env), [env[PYTHON] if word == sys.executable else word for word in command]


@contextmanager
def begun(env: Mapping[str, str]) -> Iterator[None]:
    """`forked` for what this process starts meanwhile: the template imports while the run is still being looked at."""
    with forked(env, []) as (named, _):
        before = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        os.environ.update({name: named[name] for name in VARIABLES if name in named})
        try:
            yield
        finally:
            for name in VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(before)


def _started(folder: Path, env: Mapping[str, str], stack: ExitStack) -> dict[str, str]:
    path = folder / "socket"
    server = subprocess.Popen(
        _command(path), env={**env, processes.STAGE_ID: _NO_STAGE}, stdin=subprocess.DEVNULL, start_new_session=True
    )
    stack.callback(server.wait)
    stack.callback(server.kill)
    while not path.exists():  # before that, whoever asks would start an interpreter
        if server.poll() is not None:
            raise RuntimeError(f"the template of the stage's processes ended at once, exit code {server.returncode}")
        time.sleep(0.02)
    return variables(path)


def _command(path: Path) -> list[str]:
    return [sys.executable, "-m", "retool_mcore.runner.template", str(path), " " * TITLE_ROOM]


def variables(path: Path) -> dict[str, str]:
    """Return the variables that name the template listening at `path`."""
    python = str(path.with_name("python"))
    return dict(zip(VARIABLES, (str(path), python, python), strict=True))


def main(path: Path) -> None:
    if os.environ.get(processes.STAGE_ID) != _NO_STAGE:  # started by hand: launch/quickstart.sh
        env = stage_env({"parallel": {"device": "cpu"}}) | {processes.STAGE_ID: _NO_STAGE}
        os.execve(sys.executable, _command(path), env)
    processes.signal_at_parents_death(signal.SIGKILL)
    mark = _environment_block(processes.STAGE_ID)
    import setproctitle  # here, because the command line imports this module

    setproctitle.getproctitle()  # finds the place of titles, which imports hide
    env = {name: os.environ.get(name) for name in fixed_at_import(os.environ)}  # imports change some
    python = path.with_name("python")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{forked_python.__file__}" "$@"\n')
    python.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)  # who asks before the imports are done waits for them
    for name in MODULES["both"] + MODULES["cpu" if on_cpu(os.environ) else "cuda"]:
        with suppress(ImportError):  # what a GPU's or a CPU's build does without
            __import__(name)
    request = Server(listener, env).serve()  # returns in the children
    try:
        _become(request, mark)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise  # the interpreter prints it
        _end(ended.code or 0)
    _end(0)


class Server:
    """Forks a child for every request until it is killed. One thread, so that a fork copies all there is."""

    def __init__(self, listener: socket.socket, env: Mapping[str, str | None]) -> None:
        self.listener, self.env = listener, env
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, tuple[socket.socket, int]] = {}  # by connection: itself and the child's number

    def serve(self) -> dict:
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        _assert_forkable()
        gc.collect()
        gc.freeze()
        while True:
            for key, _ in self.selector.select():
                request = key.data(key.fileobj)
                if request is not None:
                    return request

    def _accept(self, listener: socket.socket) -> dict | None:
        connection, _ = listener.accept()
        descriptors: list[int] = []
        try:
            user = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            data, descriptors, flags, _ = socket.recv_fds(connection, 1 << 20, MOST_DESCRIPTORS)
            request = json.loads(data)
            if user != os.getuid() or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise Refused
            if any(request["env"].get(name) != value for name, value in self.env.items()):
                raise Refused
        except (OSError, ValueError, Refused):
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            processes.signal_at_parents_death(signal.SIGKILL)
            os.setsid()
            self.close()
            connection.close()
            return request | {"received": descriptors}
        for descriptor in descriptors:
            os.close(descriptor)
        self.children[connection.fileno()] = connection, pid
        self.selector.register(connection, selectors.EVENT_READ, self._gone)
        ended = functools.partial(self._ended, connection, pid)
        self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, ended)
        with suppress(OSError):
            connection.send(json.dumps({"pid": pid}).encode())
        return None

    def _gone(self, connection: socket.socket) -> None:
        """The one that stands for a child was killed: so is the child."""
        if connection.fileno() not in self.children:  # the child ended at the same moment
            return
        _, pid = self.children[connection.fileno()]
        self.selector.unregister(connection)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _ended(self, connection: socket.socket, pid: int, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        del self.children[connection.fileno()]
        with suppress(KeyError):
            self.selector.unregister(connection)
        with suppress(OSError):
            connection.send(json.dumps({"status": status}).encode())
        connection.close()

    def close(self) -> None:
        """Close, in a child, what belongs to the template."""
        for key in list(self.selector.get_map().values()):
            os.close(key.fileobj) if isinstance(key.fileobj, int) else key.fileobj.close()  # type: ignore[attr-defined]
        for connection, _ in self.children.values():
            connection.close()
        self.selector.close()


def fixed_at_import(env: Mapping[str, str]) -> set[str]:
    """Names of the variables that a library may have read when it was imported."""
    prefixes = ("HF_", "VLLM_", "TORCH", "PYTHON", "VERL_PLATFORM", "VERL_USE_EXTERNAL")
    later = {"RAY_worker_niceness", "TOKENIZERS_PARALLELISM"}  # verl's cold start sets the latter
    return {*COMMON, *CPU, *GPU, *(name for name in env if name.startswith(prefixes))} - later


def _assert_forkable() -> None:
    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    own = [name for name in threads if not name.startswith("jemalloc")]  # pyarrow's allocator starts its own anew
    assert len(own) == threading.active_count() == 1, f"a template with the threads {threads} cannot be forked"
    assert "ray._raylet" not in sys.modules, "a template that has loaded Ray cannot be forked: it would have one place"
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    devices = {path for path in opened if path.startswith("/dev/nvidia")}
    assert not devices, f"a template that has asked CUDA for its devices cannot be forked: {devices}"


def _environment_block(name: str) -> int:
    """The place of a variable in the memory that /proc shows. Call it before anything moves the variable."""
    getenv = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(("getenv", ctypes.CDLL(None)))
    return getenv(name.encode()) - len(name) - 1


def _become(request: Mapping, mark: int) -> None:
    """Turn this child into a process started with the request's command line, and run its program."""
    import numpy
    import setproctitle

    _take_descriptors(request["received"], request["descriptors"])
    env, arguments = request["env"], request["arguments"]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(request["folder"])
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    setproctitle.setproctitle(" ".join([sys.executable, *arguments])[:TITLE_ROOM])
    # A title's library clears all that it found. One that is set later may do so again: that process is still killed
    # with the one that stands for it, which keeps its mark.
    room = len(processes.STAGE_ID) + 1 + len(_NO_STAGE)
    shown = f"{processes.STAGE_ID}={env.get(processes.STAGE_ID, '')}".encode()
    ctypes.memmove(mark, shown.ljust(room, b"\0")[:room], room)
    numpy.random.seed()  # every fork would draw the same numbers; random reseeds itself, torch begins alike anyway
    multiprocessing.set_executable(env[PYTHON])
    kind, program, rest = program_of(arguments)
    if program.endswith(RAY_WORKER):
        ray_titles.install()
    sys.argv = [program if kind == "script" else kind, *rest]
    if not sys.flags.safe_path:  # else no folder of the program's is searched (python_path.py)
        sys.path[0] = str(Path(program).resolve().parent) if kind == "script" else "" if kind == "-c" else os.getcwd()
    if kind == "script":
        runpy.run_path(program, run_name="__main__")
    elif kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main_module.__dict__)


def _end(code: int) -> None:
    """End as an interpreter does, but for clearing what was imported: half a million objects, each page of them copied
    for it, take most of a second of a processor."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()
    os._exit(code)


def _take_descriptors(received: list[int], targets: list[int]) -> None:
    """Put the descriptors where the client had them; they arrive under any numbers, also under each other's."""
    above = max([2, *received, *targets]) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for target, descriptor in zip(targets, moved, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
