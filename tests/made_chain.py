"""A recorded chain of starts: what the jobs of a long RL stage leave in its folder."""

import json
from datetime import UTC, datetime
from pathlib import Path

from retool_mcore.state import chain

BEGIN = datetime(2026, 1, 1, 8, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


def at(hours: float) -> str:
    return datetime.fromtimestamp(BEGIN + hours * HOUR, UTC).isoformat(timespec="seconds")


def record(folder: Path, starts, attempts=(), steps=()) -> Path:
    """starts: lines of starts.jsonl; attempts: of attempts.jsonl; steps: first and last of each attempt's."""
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    for name, lines in ((chain.FILE, starts), ("attempts.jsonl", attempts)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number, (first, last) in enumerate(steps, start=1):
        lines = [json.dumps({"step": step, "data": {"timing_s/step": HOUR}}) + "\n" for step in range(first, last + 1)]
        (folder / "metrics" / f"attempt_{number:03d}.jsonl").write_text("".join(lines))
    return folder


def began(mark, hours, attempt, nodes=("n1", "n2")):
    return {"start": mark, "nodes": [*nodes], "began": at(hours), "attempt": attempt}


def ended(mark, hours, why, text="", **more):
    return {"start": mark, "ended": at(hours), "why": why, "text": text, **more}


def make_chain(folder: Path) -> Path:
    """Four starts of one job, the last at work: stopped for the time; a fault after step 6, for which steps 5 and 6 are
    done again; an unfit node, which the job then keeps off."""
    starts = [
        began("7-0", 0, 1),
        ended("7-0", 4.5, chain.TIME_LIMIT, "rl: stopped after step 4 for the time limit"),
        began("7-1", 5, 2),
        ended("7-1", 8, chain.FAULT, "rl failed: NCCL error"),
        began("7-2", 8.5, 3),
        ended("7-2", 8.6, chain.FAULT, "node n2, GPUs: 7, 8 needed"),
        ended("7-2", 8.6, chain.FAULT, "node n2, GPUs: 7, 8 needed", avoids=["n2"]),
        began("7-3", 9, 3, nodes=("n1", "n3")),
    ]
    record(folder, starts, steps=[(1, 4), (5, 6), (5, 7)])
    (folder / "config.yaml").write_text("verl: {trainer: {total_training_steps: 10}}\n")
    (folder / "heartbeat").mkdir()
    beat = {"phase": "update", "done": 0, "total": 0, "since": BEGIN, "time": BEGIN, "next_save": BEGIN + 13 * HOUR}
    (folder / "heartbeat" / "trainer.json").write_text(json.dumps(beat))
    return folder
