"""How the policy uses its interpreter: ReTool's six behaviour metrics (arXiv 2504.11536) and the tool's health."""

from collections import Counter

import numpy as np

# Written even when no trajectory ended so, so that a curve starts at zero instead of in the middle of the run.
FINISHES = ("answer", "length", "turn_length", "overflow", "max_turns")


def behaviour(records: list[dict]) -> dict[str, float]:
    """Means over trajectories. A figure whose denominator is empty is left out, so no value is ever NaN.

    records: `Trajectory.to_record()` with "acc" (1.0 or 0.0) added. A *run* is a call that reached the interpreter: not
    malformed and not lost to a failure of the sandbox itself. The six metrics of the paper come first:

        response_length         tokens of the response, observations included
        code_ratio              share of responses that contain code
        code_lines              non-blank lines of code per response, responses without code counted as 0
        correct_code_runs       runs that ended with "success", summed over all records
        last_code_pass/correct  share of responses whose last run succeeded, among right answers with a run
        last_code_pass/incorrect   the same among wrong answers with a run
        invocation_timing       start of a code block / response length in tokens, mean over code blocks

        policy_tokens           sampled tokens of the response
        turns, calls            per response
        malformed_call_share    malformed calls / calls
        sandbox_error_share     calls lost to the sandbox / well-formed calls
        tool_success_rate       successful runs / runs
        tool_latency_s/mean, /p95   of runs
        truncated_observation_share   cut observations / calls
        finish/REASON           share of trajectories
    """
    if not records:
        return {}
    calls = [call for record in records for call in record["calls"]]
    attempts = [call for call in calls if not call["malformed"]]
    runs = [call for call in attempts if _ran(call)]
    latencies = [call["duration_s"] for call in runs]
    last_runs = [(record["acc"], [call for call in record["calls"] if _ran(call)][-1:]) for record in records]
    timing = [
        call["start"] / len(record["response_ids"]) for record in records for call in record["calls"] if call["code"]
    ]
    finishes = Counter(record["finish"] for record in records)
    samples = {
        "response_length": [len(record["response_ids"]) for record in records],
        "code_ratio": [any(call["code"] for call in record["calls"]) for record in records],
        "code_lines": [sum(_lines(call["code"]) for call in record["calls"]) for record in records],
        "last_code_pass/correct": [_passed(run) for acc, last in last_runs for run in last if acc],
        "last_code_pass/incorrect": [_passed(run) for acc, last in last_runs for run in last if not acc],
        "invocation_timing": timing,
        "policy_tokens": [sum(record["response_mask"]) for record in records],
        "turns": [record["turns"] for record in records],
        "calls": [len(record["calls"]) for record in records],
        "malformed_call_share": [call["malformed"] for call in calls],
        "sandbox_error_share": [not _ran(call) for call in attempts],
        "tool_success_rate": [_passed(call) for call in runs],
        "tool_latency_s/mean": latencies,
        "truncated_observation_share": [call["truncated"] for call in calls],
    }
    metrics = {name: float(np.mean(values)) for name, values in samples.items() if values}
    metrics["correct_code_runs"] = float(sum(map(_passed, runs)))
    if latencies:
        metrics["tool_latency_s/p95"] = float(np.percentile(latencies, 95))
    for reason in sorted({*FINISHES, *finishes}):
        metrics[f"finish/{reason}"] = finishes[reason] / len(records)
    return metrics


def _ran(call: dict) -> bool:
    return not call["malformed"] and call["status"] != "sandbox_error"


def _passed(call: dict) -> bool:
    return call["status"] == "success"


def _lines(code: str | None) -> int:
    return sum(bool(line.strip()) for line in (code or "").splitlines())
