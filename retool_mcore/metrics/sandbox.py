"""How fast and how well the sandbox ran a step's programs, and which part of the grader decided its answers."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from retool_mcore.sandbox.base import Status


def sandbox_metrics(records: Sequence[dict]) -> dict[str, float]:
    """Over all calls of these records that went to the sandbox; {} when there is none.

    records: `Trajectory.to_record()`. Malformed calls and those of other tools never reach the
    sandbox and do not count.

        runs                             programs
        latency_p50, _p90, _p99, _max    `latencies_s`
        share/STATUS                     of runs, for each of sandbox.base.Status
    """
    statuses = Counter(call["status"] for call in _runs(records))
    runs = statuses.total()
    if not runs:
        return {}
    metrics = {"runs": float(runs)} | {f"share/{status}": statuses[status] / runs for status in Status}
    if latencies := latencies_s(records):
        for name, value in zip(("p50", "p90", "p99"), np.percentile(latencies, [50, 90, 99]), strict=True):
            metrics[f"latency_{name}"] = float(value)
        metrics["latency_max"] = max(latencies)
    return metrics


def latencies_s(records: Sequence[dict]) -> list[float]:
    """Seconds of each run as the sandbox measured them; a run lost to the sandbox itself has none."""
    return [float(call["duration_s"]) for call in _runs(records) if call["status"] != Status.SANDBOX]


def _runs(records: Sequence[dict]) -> list[dict]:
    return [call for record in records for call in record["calls"] if call["code"] is not None]


# rewards/equivalence.py::decide_once; rewards/math.py: the question handed back; recipes/outcome.py: scoring
# itself raised; rewards/tool_calls.py::judge.
PARTS = ("front", "memo", "undecided", "copied", "crashed", "unread")


def grader_metrics(records: Sequence[Mapping]) -> dict[str, float]:
    """Answers of these records by the part that decided, each of PARTS; {} when none was compared.

    records: with `graded_by` of the reward (recipes/outcome.py), "" where there was no answer to compare.
    """
    counts = Counter(record["graded_by"] for record in records if record.get("graded_by"))
    return {part: float(counts[part]) for part in PARTS} if counts else {}
