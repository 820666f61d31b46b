"""The process of an agent: a folder, an environment that is built and not inherited, limits, and how it ended.

An agent runs as this user, so it is a program that its user trusts; what it may use of the machine is bounded all the
same, and nothing that it started outlives it.
"""

import asyncio
import hashlib
import json
import math
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.sandbox.isolation.limits import descendants
from retool_mcore.sandbox.isolation.syscalls import die_with_parent

TAIL_BYTES = 64 * 1024  # of its output
FAILED = 75  # EX_TEMPFAIL: the agent says that the episode is not the policy's fault
MAX_RESULT_BYTES = 1_000_000
_WATCH_S = 0.5
_FOLDER_WATCHES = 10  # so many looks at its processes for one at its folder
_MARK = "RETOOL_EPISODE"
_KEPT = ("PATH", "RETOOL_STAGE_ID")  # of this process's environment; by the latter a run's launcher finds what it left


@dataclass(frozen=True)
class AgentLimits:
    """episode_s: seconds of the whole process; grace_s: from SIGTERM to SIGKILL. memory_mb: resident, of all of its
    processes together; folder_mb: of its folder; processes: at once."""

    episode_s: float = 1800.0
    grace_s: float = 5.0
    memory_mb: int = 4096
    folder_mb: int = 1024
    processes: int = 64


@dataclass(frozen=True)
class AgentEnd:
    """How an agent's process ended.

    how: "exit" with `code`, "timeout", "limit" (what: which of `AgentLimits`), or "no_start". tail: the end of its
    output.
    """

    how: str
    code: int | None = None
    what: str = ""
    tail: str = ""

    def __str__(self) -> str:
        what = {"exit": f"exit code {self.code}", "timeout": "the time was up", "no_start": "it could not be started"}
        lines = self.tail.strip().splitlines()
        return what.get(self.how, self.what) + (f"; its last line: {lines[-1][:300]}" if lines else "")


class ResultError(Exception):
    """The agent's result file is not what it must be."""


def environment(folder: Path, *, base_url: str, key: str, seed: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an agent's process; extra: what the user adds."""
    built = {name: os.environ[name] for name in _KEPT if name in os.environ}
    built |= {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,  # litellm's name for it
        "OPENAI_API_KEY": key,
        "RETOOL_MODEL": "openai/policy",
        "RETOOL_ROW": str(folder / "row.json"),
        "RETOOL_RESULT": str(folder / "result.json"),
        "RETOOL_SEED": str(seed),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return built | dict(extra) | {_MARK: hashlib.sha256(key.encode()).hexdigest()}


async def run_agent(command: Sequence[str], folder: Path, env: Mapping[str, str], limits: AgentLimits) -> AgentEnd:
    """Run an agent in its folder to its end. Nothing of it is left then."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        return AgentEnd("no_start", what=str(error), tail=str(error))
    tail = bytearray()
    reading = asyncio.ensure_future(_read(process.stdout, tail))
    watching = asyncio.ensure_future(_watch(process, folder, limits))
    how, what = "exit", ""
    try:
        try:
            async with asyncio.timeout(limits.episode_s):
                waiting = asyncio.ensure_future(process.wait())
                await asyncio.wait([waiting, watching], return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    how, what = "limit", watching.result()
                    waiting.cancel()
        except TimeoutError:
            how = "timeout"
        if how != "exit":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.grace_s):
                    await process.wait()
    finally:
        watching.cancel()
        await asyncio.shield(_end(process, env[_MARK]))
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # a process that was just killed may hold the pipe for a moment
                await asyncio.shield(reading)
        reading.cancel()
    return AgentEnd(how, process.returncode, what, tail.decode(errors="replace"))


async def _read(stream: asyncio.StreamReader | None, tail: bytearray) -> None:
    while stream is not None and (part := await stream.read(65536)):
        tail += part
        del tail[:-TAIL_BYTES]


async def _watch(process: asyncio.subprocess.Process, folder: Path, limits: AgentLimits) -> str:
    """Return which limit the agent breaks, once it does."""
    looks = 0
    while True:
        await asyncio.sleep(_WATCH_S)
        looks += 1
        found = await asyncio.to_thread(_used, process.pid, folder if looks % _FOLDER_WATCHES == 0 else None)
        count, memory, disk = found
        if count > limits.processes:
            return f"more than environment.processes={limits.processes} processes"
        if memory > limits.memory_mb * 2**20:
            return f"more than environment.memory_mb={limits.memory_mb} of memory"
        if disk > limits.folder_mb * 2**20:
            return f"more than environment.folder_mb={limits.folder_mb} in its folder"


def _used(pid: int, folder: Path | None) -> tuple[int, int, int]:
    """(processes, their resident bytes, bytes of the folder)."""
    pids = [pid, *descendants(pid)]
    memory = sum(_resident(one) for one in pids)
    disk = 0
    for place, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            with suppress(OSError):
                disk += os.lstat(os.path.join(place, name)).st_blocks * 512
    return len(pids), memory, disk


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


async def _end(process: asyncio.subprocess.Process, mark: str) -> None:
    """Kill what the agent started, also what left its group and its session."""
    for _ in range(20):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        left = await asyncio.to_thread(_marked, f"{_MARK}={mark}".encode())
        if not left and process.returncode is not None:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)


def _marked(mark: bytes) -> list[int]:
    """The processes whose environment has the mark."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                with open(f"/proc/{name}/stat") as state:
                    if state.read().rpartition(")")[2].split()[0] not in "ZX":
                        found.append(int(name))
    return found


@dataclass(frozen=True)
class Result:
    """What an agent wrote to RETOOL_RESULT: its own reward and its answer, each None where it names none."""

    reward: float | None = None
    answer: str | None = None


def read_result(path: Path) -> Result:
    """Return an agent's result, read once its processes are gone. Raises ResultError for a file that is none: no plain
    file, no JSON object, a reward that is no finite number, an answer that is no text."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Result()
    except OSError as error:
        raise ResultError(f"its result cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ResultError("its result is no plain file")
        data = file.read(MAX_RESULT_BYTES + 1)
    if len(data) > MAX_RESULT_BYTES:
        raise ResultError(f"its result has more than {MAX_RESULT_BYTES:,} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ResultError("its result is no JSON") from error
    if not isinstance(value, dict):
        raise ResultError("its result is no JSON object")
    reward, answer = value.get("reward"), value.get("answer")
    if reward is not None and (type(reward) not in (int, float) or not math.isfinite(reward)):
        raise ResultError("its reward is no finite number")
    if answer is not None and not isinstance(answer, str):
        raise ResultError("its answer is no text")
    return Result(None if reward is None else float(reward), answer)


def write_row(path: Path, row: Mapping) -> None:
    """Write what an agent sees of its row: question, messages, tools and index, never the expected answer."""
    extra = row.get("extra_info") or {}
    shown = {
        "question": extra.get("question"),
        "messages": [dict(message) for message in row["raw_prompt"]],
        "tools": extra.get("tools"),
        "index": int(row["index"]),
        "data_source": str(row["data_source"]),
    }
    path.write_text(json.dumps(shown, ensure_ascii=False, default=lambda value: value.tolist()))
