"""Notices that a stage hangs, or waits for a process that is gone; of one that hangs it writes down where: the Python
stacks of all its processes on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from retool_mcore.files import write_atomically
from retool_mcore.resources import processors
from retool_mcore.runner.phase_line import bytes_saved
from retool_mcore.runner.processes import Process
from retool_mcore.runner.stage_log import dead_worker
from retool_mcore.state import heartbeat

SILENCES = "silences.json"  # RUN/<stage>/: the longest silence of every phase that has ended, in seconds, over attempts
FACTOR = 3.0  # as much longer than any before may a silence be
DUMP_TIMEOUT_S = 60.0
MAX_GAP_S = 30.0
READING = (heartbeat.START, heartbeat.LOAD)
TAIL_CHARACTERS = 4000  # Ray's line about a dead worker is shorter
DEAD_WORKER_PATIENCE_S = 20.0  # a stage that notices first reports a better error


class Watchdog:
    """Says whether a stage stands still: no beat, and no growth of `files` (its log and metrics) or of a checkpoint.

    A phase that has never ended has `limit_s`. Afterwards the limit is FACTOR times its longest silence, or the longest
    turn of the policy twice, and no less than half of `limit_s`: a machine may have a slow hour. A start and a load
    never have less than `limit_s`: how long they were silent before says little, since a first start reads no
    checkpoint and storage is slower at times.
    """

    def __init__(self, files: Iterable[Path], limit_s: float, stage_dir: Path | None = None) -> None:
        self.files, self.start_s, self.stage_dir = list(files), limit_s, stage_dir
        self.phase, self.patience_s, self.longest_s = heartbeat.START, 0.0, 0.0
        self.known: dict[str, float] = {}
        with suppress(OSError, ValueError):
            self.known = json.loads((stage_dir / SILENCES).read_text()) if stage_dir else {}
        self.signs = self._signs()
        self.quiet_s = 0.0
        self.looked = time.monotonic()

    @property
    def limit_s(self) -> float:
        """Return the limit of the phase that runs."""
        if self.phase not in self.known:
            return max(self.start_s, 2 * self.patience_s)
        longest = max(self.known[self.phase], self.longest_s)
        least = self.start_s if self.phase in READING else self.start_s / 2
        return max(least, FACTOR * longest, 2 * self.patience_s)

    def hangs(self) -> bool:
        """Call often: of a longer time between two calls, in which Slurm or Ctrl-Z may have stopped us and the
        stage alike, only MAX_GAP_S count."""
        before, now = self.phase, time.monotonic()
        signs = self._signs()
        self.quiet_s += min(now - self.looked, MAX_GAP_S)
        if signs != self.signs:
            self.longest_s, self.quiet_s = max(self.longest_s, self.quiet_s), 0.0
        if self.phase != before:
            self._learn(before, max(self.longest_s, self.known.get(before, 0.0)))
            self.longest_s = 0.0
        self.signs, self.looked = signs, now
        if hangs := self.quiet_s >= self.limit_s:
            self._learn(self.phase, None)  # should the limit have been wrong, the next attempt gets the whole
        return hangs

    def _learn(self, phase: str, silence_s: float | None) -> None:
        """None: forget."""
        old = self.known.get(phase)
        self.known = {name: s for name, s in self.known.items() if name != phase}
        if silence_s is not None:
            self.known[phase] = silence_s
        if self.stage_dir is not None and self.known.get(phase) != old:
            write_atomically(self.stage_dir / SILENCES, json.dumps(self.known))

    def _signs(self) -> list:
        signs: list = [file.stat().st_size if file.exists() else 0 for file in self.files]
        if self.stage_dir is not None:
            beats = heartbeat.read(self.stage_dir)
            self.phase = heartbeat.phase_of(beats)
            self.patience_s = 0.0
            if self.phase in heartbeat.SAMPLING:
                self.patience_s = max((beat.get("patience_s", 0.0) for beat in beats.values()), default=0.0)
            signs += [sorted((name, beat["beats"]) for name, beat in beats.items()), bytes_saved(self.stage_dir)]
        return signs


class DeadWorker:
    """Says that a worker of Ray died and the stage did not end over it: others may wait for ever for what it had. A
    worker that the stage replaces is none."""

    def __init__(self, log: Path, patience_s: float = DEAD_WORKER_PATIENCE_S) -> None:
        self.log, self.patience_s = log, patience_s
        self.start = self.position = log.stat().st_size if log.exists() else 0
        self.tail = self.sentence = ""
        self.since = 0.0

    def found(self) -> str:
        """Call often; returns the sentence of `stage_log.dead_worker` once `patience_s` have passed, "" before."""
        if not self.sentence:
            text, self.position = self._read(self.position)
            self.tail += text
            if dead_worker(self.tail):  # the line that names its class may come long before
                self.sentence, self.since = dead_worker(self._read(self.start)[0], fatal=True), time.monotonic()
                self.tail = self.tail.rpartition("\n")[2]
            self.tail = self.tail[-TAIL_CHARACTERS:]
        return self.sentence if self.sentence and time.monotonic() - self.since >= self.patience_s else ""

    def _read(self, start: int) -> tuple[str, int]:
        """The log from byte `start` on, and where it ends."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace"), file.tell()


def dump_stacks(processes: Iterable[Process], folder: Path) -> None:
    """Writes `folder`/<pid>.txt for each process: its command line, state, and Python stacks by py-spy.

    Where py-spy may not look (it needs the right to trace processes) or the process is no Python, its message stands
    in place of the stacks; a process that listens for SIGUSR2 (faulthandler) then writes them into its own output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    with ThreadPoolExecutor(min(8, processors())) as pool:
        list(pool.map(lambda process: _dump(py_spy, process.pid, folder / f"{process.pid}.txt"), processes))


def _dump(py_spy: str | None, pid: int, path: Path) -> None:
    text, listens = "", 0
    with suppress(OSError):  # it ended meanwhile
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        text, listens = f"{words}\nState:\t{fields['State']}\n\n", int(fields["SigCgt"], 16) >> (signal.SIGUSR2 - 1) & 1
    stacks = reason = ""
    try:
        command = [py_spy or "py-spy", "dump", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S)
        stacks, reason = done.stdout if done.returncode == 0 else "", done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"{error}\n"
    if not stacks:
        stacks = f"no stacks: {reason}"
        with suppress(ProcessLookupError, PermissionError):
            if listens:
                os.kill(pid, signal.SIGUSR2)
                stacks += "They are in its own output: the stage's log.txt, the ranks' under ranks/, Ray's logs.\n"
    path.write_text(text + stacks)
