"""The activity of a running stage, reported by its processes: RUN/<stage>/heartbeat/WRITER.json, one file a writer.

The trainer names the phase; rank 0 counts micro-batches, rollout workers count turns. Call these functions where work
has ended, never by a timer (reading.py asks what was read meanwhile): the watchdog takes every beat for progress. A
rank that stands still needs no file of its own: the others wait for it at the next collective, as a phase waits at its
end for a rollout worker. Where the folder is not named in the environment, as in tests and tools, nothing is written.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "RETOOL_HEARTBEAT"  # names the folder to every process of the stage, on all nodes
FOLDER = "heartbeat"
EVERY_S = 2.0  # between two writes of one writer in one phase
TRAINER, RANK = "trainer", "rank0"
START = "start"  # the phase before the first beat
LOAD = "load"  # of the checkpoint that a stage goes on from
GENERATION, UPDATE, SAVE, PUSH, VALIDATION = "generation", "update", "save", "push", "validation"
EVALUATION = "evaluation"  # the one phase of `retool eval`, once its engine is up
SAMPLING = (GENERATION, VALIDATION, EVALUATION)  # phases in which trajectories are sampled


class Writer:
    """One process's file. Facts stay until they are given again; a new phase is written at once."""

    def __init__(self, name: str) -> None:
        self.name, self.written = name, 0.0
        self.record: dict[str, Any] = {"writer": name, "phase": "", "beats": 0}

    def beat(self, phase: str, done: float = 0, total: float = 0, **facts: Any) -> None:
        """Say that something of `phase` has ended: `done` of `total`, 0 where that is not known.

        Facts that readers know: before (of `done`, what an earlier attempt had done), next_save (seconds since the
        epoch), parts (optimizer steps of an update), updates (begun by this rank), finished and live (trajectories),
        tokens_per_s, patience_s (this writer may be silent for so long in good order).
        """
        record, now = self.record, time.time()
        new = phase != record["phase"]
        if new:
            record["since"] = now
        record.update(facts, phase=phase, done=done, total=total, beats=record["beats"] + 1, time=now)
        folder = os.environ.get(VARIABLE)
        if folder is None or not (new or now - self.written >= EVERY_S):
            return
        self.written = now
        part = Path(folder, f".{self.name}.{os.getpid()}.part")
        # A disk that is full has a better place to say so; without fsync: only the living read it.
        with suppress(OSError):
            part.write_text(json.dumps(record))
            os.replace(part, Path(folder, f"{self.name}.json"))


_writers: dict[str, Writer] = {}


def beat(writer: str, phase: str, done: float = 0, total: float = 0, **facts: Any) -> None:
    """`Writer.beat` of this process's writer of that name."""
    if writer not in _writers:
        _writers[writer] = Writer(writer)
    _writers[writer].beat(phase, done, total, **facts)


def again(writer: str, done: float, total: float) -> None:
    """A beat in the phase that this process's writer is in, if `done` or `total` have changed."""
    known = _writers.get(writer)
    if known and (done, total) != (known.record["done"], known.record["total"]):
        known.beat(known.record["phase"], done, total)


def prepare(stage_dir: Path) -> Path:
    """The folder, without the beats of earlier attempts."""
    folder = (stage_dir / FOLDER).absolute()
    folder.mkdir(exist_ok=True)
    for path in [*folder.glob("*.json"), *folder.glob(".*.part")]:
        path.unlink(missing_ok=True)
    return folder


def read(stage_dir: Path) -> dict[str, dict[str, Any]]:
    """The last record of every writer by its name."""
    beats = {}
    for path in (stage_dir / FOLDER).glob("*.json"):
        with suppress(OSError, ValueError):
            beats[path.stem] = json.loads(path.read_text())
    return beats


def phase_of(beats: dict[str, dict[str, Any]]) -> str:
    """The stage's phase."""
    return beats[TRAINER]["phase"] if TRAINER in beats else START
