"""Notices a start of a job that ended without a word: with the job's first node all goes that could have said why.

RUN/<stage>/running.json names the start that is at work; whoever ends it in order, or tells why it ended, removes it.
"""

import json
from contextlib import suppress
from pathlib import Path

from retool_mcore.files import write_atomically

FILE = "running.json"


def begin(folder: Path, mark: str, node: str) -> None:
    """`mark`: the job's number and that of its start (from 0), JOB-START; `node`: the first of the job's nodes."""
    write_atomically(folder / FILE, json.dumps({"mark": mark, "node": node}))


def end(folder: Path, mark: str | None = None) -> bool:
    """That start has ended in order, or somebody tells why; of `mark`, where a later one may have begun.

    Whether the caller is the first to say so: of two processes that see the same end, only one may judge it.
    """
    if mark is None or _read(folder).get("mark") == mark:
        with suppress(FileNotFoundError):
            (folder / FILE).unlink()
            return True
    return False


def unreported_crash(folder: Path, job_id: int) -> str | None:
    """What is known of a start of this job that ended without a word, as a sentence; None when there is none."""
    found = _read(folder)
    job, _, start = found.get("mark", "").partition("-")
    if job != str(job_id):
        return None
    node = found["node"]
    return (
        f"start {int(start) + 1} of this job ended without a word, because its first node, {node}, was lost or "
        f"restarted, or all of the job was killed: 'scontrol show node {node}' and slurmctld's log tell more"
    )


def _read(folder: Path) -> dict[str, str]:
    try:
        return json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return {}
