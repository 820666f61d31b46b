"""Notices a start of a job that ended without a word: with the job's first node all goes that could have said why.

RUN/<stage>/running.json names the start that is at work. Only a process of that start, or the job's next start, removes
it: another job of the same stage has to leave it, and itself, alone.
"""

import json
from contextlib import suppress
from pathlib import Path

from retool_mcore.files import write_atomically

FILE = "running.json"


def begin(folder: Path, mark: str, node: str) -> None:
    """`mark`: the job's number and that of its start (from 0), JOB-START; `node`: the first of the job's nodes."""
    write_atomically(folder / FILE, json.dumps({"mark": mark, "node": node}))


def end(folder: Path, mark: str) -> bool:
    """The start `mark` has ended in order, or somebody tells why.

    Whether the caller is the first to say so: of two processes that see the same end, only one may judge it.
    """
    if _read(folder).get("mark") == mark:
        with suppress(FileNotFoundError):
            (folder / FILE).unlink()
            return True
    return False


def other_job(folder: Path, job: str) -> str | None:
    """The job, other than this one, whose start is marked as at work; it may have been killed since."""
    marked = _read(folder).get("mark", "").partition("-")[0]
    return marked if marked not in ("", job) else None


def unreported_crash(folder: Path, job: str) -> tuple[str, str] | None:
    """A start of this job that ended without a word: its mark and a sentence about it; None when there is none."""
    found = _read(folder)
    mark = found.get("mark", "")
    marked, _, start = mark.partition("-")
    if marked != job:
        return None
    node = found["node"]
    return mark, (
        f"start {int(start) + 1} of this job ended without a word, because its first node, {node}, was lost or "
        f"restarted, or all of the job was killed: 'scontrol show node {node}' and slurmctld's log tell more"
    )


def _read(folder: Path) -> dict[str, str]:
    try:
        return json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return {}
