"""The causes of a run in one order, as sentences."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from retool_mcore.errors import UserError, no_run
from retool_mcore.explain import answers, calls, cold_start, problems, rewards, speed, updates
from retool_mcore.explain.finding import Finding, ranked
from retool_mcore.explain.prepared import Prepared, prepare

CAUSES: Mapping[str, tuple[Callable[[Prepared], Finding | None], ...]] = {
    "sft": (
        updates.failed, cold_start.diverged, cold_start.flat, cold_start.overfitted, problems.leaked,
        problems.duplicated,
    ),
    "rl": (
        updates.failed, updates.broken, updates.entropy_collapse, updates.entropy_explosion, updates.lr_high,
        updates.lr_low, updates.mismatch, updates.stale, rewards.raises, rewards.constant, rewards.disagrees,
        rewards.hacking, rewards.copied, rewards.no_signal, answers.cut, answers.repetition, answers.wrong_rule,
        answers.format_, answers.split_numbers, calls.sandbox_errors, calls.fail, calls.vanish, calls.never,
        calls.degenerate, problems.leaked, problems.duplicated, speed.tool_latency, speed.host_bound,
    ),
}  # fmt: skip


def explain(run: Path) -> tuple[list[Prepared], list[Finding]]:
    """The stages of the run that were read, and what was found, the most important first.

    Raises UserError for a folder in which neither SFT nor RL has ended a step or failed.
    """
    stages = [prepared for stage in CAUSES if (prepared := prepare(run, stage))]
    if not stages:
        raise no_run(run)
    findings = [
        replace(finding, stage=prepared.stage)
        for prepared in stages
        for cause in CAUSES[prepared.stage]
        if (finding := cause(prepared))
    ]
    return stages, ranked(findings)


def explained(run: Path) -> dict:
    """Return the report for the viewer: {"stages": [a line each], "findings": [Finding as a dictionary], "error"}."""
    try:
        stages, findings = explain(run)
    except UserError as error:
        return {"stages": [], "findings": [], "error": str(error)}
    return {"stages": list(_heads(stages)), "findings": [asdict(finding) for finding in findings], "error": ""}


def lines(run: Path) -> Iterator[str]:
    """The report of `retool explain`."""
    stages, findings = explain(run)
    yield from _heads(stages)
    if not findings:
        yield "Nothing stands out."
    for number, finding in enumerate(findings, start=1):
        yield f"{number}. {finding.sentence()}"


def _heads(stages: Iterable[Prepared]) -> Iterator[str]:
    """What was read of each stage."""
    for prepared in stages:
        checks = len(CAUSES[prepared.stage])
        accuracy = prepared.ends("reward/accuracy")
        range_text = f", accuracy {accuracy[0]:.0%} to {accuracy[1]:.0%}" if accuracy else ""
        few = updates.short_of_steps(prepared)
        note = f" ({few})" if few else ""
        yield f"{prepared.stage}: {prepared.span}{range_text}; {checks} causes looked for{note}"


def top_line(run: Path) -> str:
    """The most important finding as one line, "" without any."""
    findings = explain(run)[1]
    return findings[0].sentence() if findings else ""
