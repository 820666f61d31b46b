"""Decides whether a stage that failed is started again: RUN/<stage>/failures.jsonl remembers how it failed before.

A node that broke deserves another attempt; an error that comes back at the same step would only burn the allocation.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retool_mcore.files import read_json_lines, write_atomically
from retool_mcore.state.progress import attempt_files, read_steps

FAILURES = "failures.jsonl"
TOO_SHORT = (
    "the job's time was over before a single step (of an evaluation: a sample) ended: give it a longer time limit "
    "(time in the site's file)"
)
# What differs between two occurrences of one error, most specific first, and what stands instead.
_VARYING = (
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"\b0x[0-9a-fA-F]+\b", "<address>"),
    (r"(?<![\w/])~?/[^\s'\":,;()\[\]]+", "<path>"),
    (r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8}(?:-?[0-9a-f]{4,}){0,4}\b", "<id>"),
    (r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", "<n>"),
)


@dataclass(frozen=True)
class Decision:
    """Whether to start the stage again, and why, in one sentence for the log."""

    requeue: bool
    why: str


def error_signature(message: str) -> str:
    """The first line of `message` without what differs each time: numbers, pids, addresses, ids and paths."""
    lines = message.strip().splitlines()
    text = lines[0].strip() if lines else ""
    for pattern, name in _VARYING:
        text = re.sub(pattern, name, text)
    return text


def recorded_bytes(stage_dir: Path) -> int:
    """Bytes that the stage has recorded of finished work, over all attempts: steps, and samples of an evaluation. They
    grow as long as it comes forward; an export records nothing."""
    files = [*attempt_files(stage_dir).values(), stage_dir / "trajectories.jsonl"]
    return sum(path.stat().st_size for path in files if path.exists())


def judge(stage_dir: Path, error: str, max_attempts: int, nodes: Sequence[str] = ()) -> Decision:
    """Writes a failure of the newest attempt down; whether the stage deserves another. `nodes`: those at fault."""
    attempt, step = max(attempt_files(stage_dir), default=0), max(read_steps(stage_dir), default=0)
    return record_failure(stage_dir, attempt, step, error, nodes=nodes, max_attempts=max_attempts)


def record_failure(
    stage_dir: Path, attempt: int, step: int, message: str, *, nodes: Sequence[str] = (), max_attempts: int = 10
) -> Decision:
    """Appends the failure of `attempt` to failures.jsonl and says whether the stage deserves another attempt.

    Args:
        step: the last step that the stage ended, 0 when none.
        message: of StageFailed or UserError; its first line holds the error.
        nodes: those at fault, if nodes are. The fingerprint has no numbers, so it makes n17 and n23 one name.
        max_attempts: failures of one Slurm job (a requeued job keeps its number); a new sbatch counts anew.
    """
    path = stage_dir / FAILURES
    before = read_json_lines(path)
    failure = {
        "attempt": attempt,
        "step": step,
        "fingerprint": error_signature(message),
        "nodes": sorted(nodes),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "message": message,
    }
    stage_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(entry) + "\n" for entry in [*before, failure]))
    if before and all(before[-1].get(key, []) == failure[key] for key in ("step", "fingerprint", "nodes")):
        return Decision(
            False, f"not started again: the same error came twice in a row after step {step}: {failure['fingerprint']}"
        )
    failed = sum(entry.get("job") == failure["job"] for entry in [*before, failure])
    if failed >= max_attempts:
        return Decision(
            False, f"not started again: {failed} attempts of this job failed, and {max_attempts} are allowed."
        )
    return Decision(True, f"to be started again: failure {failed} of at most {max_attempts}, after step {step}.")
