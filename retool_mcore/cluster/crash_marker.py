"""Detect a start of a job that ended without a message: whatever could have reported why went with its first node.

RUN/<stage>/running.json names the start that is at work, and keeps other jobs out of the stage. A process of that start
removes it; a later start replaces it when that job is not at work any more.
"""

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path

from retool_mcore.cluster import slurm

FILE = "running.json"


def begin(folder: Path, mark: str, node: str) -> str | None:
    """Mark a start as at work. The mark of a job that no longer is gets replaced; of two starts that try at one moment,
    one succeeds.

    Args:
        mark: the job's number and that of its start (from 0), JOB-START.
        node: the first of the job's nodes.

    Returns:
        The other job that is at work; None when the mark is set.
    """
    part = folder / f".{FILE}.{mark}"
    part.write_text(json.dumps({"mark": mark, "node": node}))
    try:
        while True:
            try:
                os.link(part, folder / FILE)
                return None
            except FileExistsError:
                earlier = _read(folder).get("mark", "")
            except OSError:  # a file system without hard links keeps nobody out
                os.replace(part, folder / FILE)
                return None
            other = _job(earlier)
            if other not in ("", _job(mark)) and slurm.at_work(other):
                return other
            _remove(folder, earlier)
    finally:
        part.unlink(missing_ok=True)


def end(folder: Path, mark: str) -> bool:
    """The start `mark` has ended in order, or somebody tells why.

    Whether the caller is the first to say so: of two processes that see the same end, only one may judge it.
    """
    if _read(folder).get("mark") == mark:
        with suppress(FileNotFoundError):
            (folder / FILE).unlink()
            return True
    return False


def unreported_crash(folder: Path, job: str) -> tuple[str, str] | None:
    """A start of this job that ended without a word: its mark and a sentence about it; None when there is none."""
    marker = _read(folder)
    mark = marker.get("mark", "")
    if _job(mark) != job:
        return None
    node, start = marker["node"], mark.partition("-")[2]
    return mark, (
        f"start {int(start) + 1} of this job ended without a word, because its first node, {node}, was lost or "
        f"restarted, or all of the job was killed: 'scontrol show node {node}' and slurmctld's log tell more"
    )


def _job(mark: str) -> str:
    return mark.partition("-")[0]


def _remove(folder: Path, mark: str) -> None:
    """Remove `mark`, unless another start has replaced it since it was read."""
    aside = folder / f".{FILE}.{uuid.uuid4().hex}"
    try:
        os.rename(folder / FILE, aside)
    except FileNotFoundError:
        return
    if json.loads(aside.read_text())["mark"] != mark:
        with suppress(FileExistsError):
            os.link(aside, folder / FILE)
    aside.unlink()


def _read(folder: Path) -> dict[str, str]:
    try:
        return json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return {}
