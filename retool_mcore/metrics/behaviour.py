"""How the policy uses its interpreter: ReTool's six behaviour metrics (arXiv 2504.11536) and the tool's health.

All of it is read from spans, calls and the notes that the rollout took of every turn, never from decoded text.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from retool_mcore.metrics.repetition import NGRAM, repeated_share

# Written even when no trajectory ended so, so that a curve starts at zero instead of in the middle of the run.
FINISHES = ("answer", "length", "turn_length", "overflow", "max_turns", "tool")
# Whose distributions are worth a histogram.
HISTOGRAMS = ("response_length", "policy_tokens", "code_lines", "invocation_timing", "turns", "calls", "tool_latency_s")


def samples(records: Sequence[Mapping]) -> dict[str, list[float]]:
    """The values by name, whose means `behaviour` takes; a list is empty where nothing was there to measure.

    records: `Trajectory.to_record()`, or what `metrics.records.read_step` returns, with "acc" (1.0 or 0.0) and "pred"
    ("" for no answer). A *run* is a call that reached its tool: not malformed and not lost to a failure of the sandbox
    itself; it *passed* when it ended with "success". The six metrics of the paper (one of them, correct_code_runs, is a
    sum) come first and are about runs of code alone:

        response_length         tokens of the response, observations included
        code_ratio              share of responses that contain code
        code_lines              non-blank lines of code per response, responses without code counted as 0
        last_code_pass/correct  share of responses whose last run passed, among right answers with a run
        last_code_pass/incorrect   the same among wrong answers with a run
        invocation_timing       start of a code block / response length in tokens, over code blocks

        policy_tokens           sampled tokens of the response
        turns, calls            per response
        void_turn_ratio         turns with neither a complete program nor a boxed answer / turns (SimpleTIR, 2509.02479)
        void_response_ratio     responses with such a turn / responses
        self_correction_rate    responses in which a later run passed that was another program, or call / responses with
                                a failed run
        malformed_call_share    malformed calls / calls
        sandbox_error_share     calls lost to the sandbox / well-formed calls
        tool_success_rate       passed runs / runs
        tool_latency_s          of runs
        truncated_observation_share   cut observations / calls
        overlong_share          responses that met the response limit ("length", "overflow") / responses
        repetition              per response: repeated n-grams / n-grams of its policy turns (metrics/repetition.py)
        faked_block_ratio       responses in which the policy opens an interpreter's block itself / responses
        fake_blocks             such blocks per response
    """
    calls = [call for record in records for call in record["calls"]]
    attempts = [call for call in calls if not call["malformed"]]
    runs = [[call for call in record["calls"] if _ran(call)] for record in records]
    coded = [[run for run in ran if run["code"]] for ran in runs]
    last = [(record["acc"], ran[-1]) for record, ran in zip(records, coded, strict=True) if ran]
    voids = [void_turns(record) for record in records]
    fakes: list[float] = [sum(len(turn["fakes"]) for turn in record["turn_notes"]) for record in records]
    repeated = [repeated_share(record["response_ids"], policy_spans(record), NGRAM) for record in records]
    return {
        "response_length": [len(record["response_ids"]) for record in records],
        "code_ratio": [any(call["code"] for call in record["calls"]) for record in records],
        "code_lines": [sum(_lines(call["code"]) for call in record["calls"]) for record in records],
        "last_code_pass/correct": [_passed(run) for acc, run in last if acc],
        "last_code_pass/incorrect": [_passed(run) for acc, run in last if not acc],
        "invocation_timing": [c["start"] / len(r["response_ids"]) for r in records for c in r["calls"] if c["code"]],
        "policy_tokens": [sum(end - start for start, end in policy_spans(record)) for record in records],
        "turns": [record["turns"] for record in records],
        "calls": [len(record["calls"]) for record in records],
        "void_turn_ratio": [void for flags in voids for void in flags],
        "void_response_ratio": [any(flags) for flags in voids],
        "self_correction_rate": [c for c in map(_corrected, runs) if c is not None],
        "malformed_call_share": [call["malformed"] for call in calls],
        "sandbox_error_share": [not _ran(call) for call in attempts],
        "tool_success_rate": [_passed(run) for ran in runs for run in ran],
        "tool_latency_s": [run["duration_s"] for ran in runs for run in ran],
        "truncated_observation_share": [call["truncated"] for call in calls],
        "overlong_share": [record["finish"] in ("length", "overflow") for record in records],
        "repetition": [share for share in repeated if share is not None],
        "faked_block_ratio": [count > 0 for count in fakes],
        "fake_blocks": fakes,
    }


def behaviour(records: Sequence[Mapping]) -> dict[str, float]:
    """Means of `samples`; a figure whose denominator is empty is left out, so no value is ever NaN. In addition:

    correct_code_runs       runs that passed, summed over all records (the paper's fourth metric)
    tool_latency_s/mean, /p95
    tool_queued_share       of the seconds waited for tools those in which none ran (`queued_s`), summed over records
    tool_time_share         seconds waited for the sandbox / seconds waited for sandbox and engine, summed over records
    finish/REASON           share of trajectories
    """
    if not records:
        return {}
    values = samples(records)
    latencies = values.pop("tool_latency_s")
    metrics = {name: float(np.mean(sample)) for name, sample in values.items() if sample}
    metrics["correct_code_runs"] = float(
        sum(bool(call["code"]) and _ran(call) and _passed(call) for record in records for call in record["calls"])
    )
    if latencies:
        metrics["tool_latency_s/mean"] = float(np.mean(latencies))
        metrics["tool_latency_s/p95"] = float(np.percentile(latencies, 95))
    tool_s, generate_s = (sum(record[name] for record in records) for name in ("tool_s", "generate_s"))
    if tool_s > 0:
        metrics["tool_queued_share"] = sum(sum(queued_s(record)) for record in records) / tool_s
    if tool_s + generate_s > 0:
        metrics["tool_time_share"] = tool_s / (tool_s + generate_s)
    finishes = Counter(record["finish"] for record in records)
    for reason in sorted({*FINISHES, *finishes}):
        metrics[f"finish/{reason}"] = finishes[reason] / len(records)
    return metrics


def by_source(records: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """The records of each data source, sources sorted by name."""
    sources = sorted({record["data_source"] for record in records})
    return {source: [record for record in records if record["data_source"] == source] for source in sources}


def histograms(records: Sequence[Mapping]) -> dict[str, list[float]]:
    """The non-empty samples of HISTOGRAMS."""
    values = samples(records)
    return {name: values[name] for name in HISTOGRAMS if values[name]}


def policy_spans(record: Mapping) -> list[tuple[int, int]]:
    """(start, end) of the policy's turns in the response, in order."""
    return [(span["start"], span["end"]) for span in record["spans"] if span["kind"] == "policy"]


def void_turns(record: Mapping) -> list[bool]:
    """Return for each policy turn whether it holds neither a complete program nor a boxed answer (arXiv 2509.02479)."""
    return [turn["programs"] == 0 and not turn["boxed"] for turn in record["turn_notes"]]


def queued_s(record: Mapping) -> list[float]:
    """Return for each turn's wait for tools the seconds in which none ran: it waited for a slot, and for processors."""
    ran: dict[int, float] = {}
    for call in record.get("calls", ()):
        ran[call["turn"]] = ran.get(call["turn"], 0.0) + (call["duration_s"] or 0.0)
    waits = [note["tool_s"] for note in record["turn_notes"]]
    return [max(wait - ran.get(turn, wait), 0.0) for turn, wait in enumerate(waits)]


def _corrected(runs: list[Mapping]) -> bool | None:
    """Whether a run that failed was followed by another program or call that passed; None when no run failed."""
    failed: set[tuple] = set()
    for run in runs:
        if _passed(run):
            if failed and failed != {_what(run)}:
                return True
        else:
            failed.add(_what(run))
    return False if failed else None


def _what(run: Mapping) -> tuple:
    """Return what was run: a program, or a tool and its arguments."""
    return (run["code"].strip(),) if run["code"] else (run.get("tool"), run.get("arguments"))


def _ran(call: Mapping) -> bool:
    return not call["malformed"] and call["status"] != "sandbox_error"


def _passed(call: Mapping) -> bool:
    return call["status"] == "success"


def _lines(code: str | None) -> int:
    return sum(bool(line.strip()) for line in (code or "").splitlines())
