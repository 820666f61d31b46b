"""Causes in the calls to tools: they fail, they vanish, none is made, the sandbox fails, programs are degenerate."""

import re
from collections import Counter, defaultdict

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import TREND, Prepared, mean, span, two

_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+(?:\.\d+)?")
_CONSTANT = re.compile(r"\s*+print\(\s*+(?:[\"'][^\"']*+[\"']|-?[\d.,\s]++|)\s*+\)\s*+|\s*+(?:pass|-?[\d.]++)?\s*+")
_NO_TOOLS = "none"
_AFTER_CALLS = ("groups all wrong", "format lost", "format never learnt", "calls vanish")


def sandbox_errors(p: Prepared) -> Finding | None:
    """The sandbox itself fails."""
    lost = [record for record in p.late if any(call["status"] == "sandbox_error" for call in record["calls"])]
    share = p.late_mean("sandbox/error_share") or 0.0
    if max(share, len(lost) / max(1, len(p.late))) < 0.05:
        return None
    what = (
        f"{max(share, len(lost) / max(1, len(p.late))):.0%} of the trajectories of the last steps were spoilt by the "
        "sandbox itself, not by their programs"
    )
    how = "fewer at once; `retool doctor` says what the sandbox lacks"
    return Finding("sandbox fails", 0.9, what, "sandbox.workers", how, two(lost, lambda record: True), _AFTER_CALLS)


def fail(p: Prepared) -> Finding | None:
    """Nearly all calls fail, most of them with one error, or cannot be read."""
    calls = [(record, call) for record in p.late for call in record["calls"] if call["status"] != "sandbox_error"]
    failed = [(record, call) for record, call in calls if call["status"] not in ("success", "output")]
    if len(calls) < 10 or len(failed) < 0.85 * len(calls):
        return None
    kind, count = Counter(_kind(call) for _, call in failed).most_common(1)[0]
    key, how = _remedy(kind, failed[0][1]["status"])
    what = (
        f"{len(failed)} of {len(calls)} calls of {span([record['step'] for record, _ in calls])} fail, {count} of them "
        f"with {kind!r}"
    )
    looks = two([record for record, call in failed if _kind(call) == kind], lambda record: True)
    return Finding("calls fail", 0.9, what, key, how, looks, _AFTER_CALLS)


def vanish(p: Prepared) -> Finding | None:
    """The policy called its tool at the start, does so no more, and is not better for it."""
    early, late = mean([row.calls > 0 for row in p.early_rows]), mean([row.calls > 0 for row in p.late_rows])
    if len(p.steps) < TREND or early < 0.1 or late > 0.25 * early or p.rise() > 0.05:
        return None
    what = (
        f"{late:.0%} of the trajectories of {span([row.step for row in p.late_rows])} call a tool, {early:.0%} at the "
        f"start, and the accuracy changed by {100 * p.rise():+.1f} points"
    )
    looks = two(p.late_rows, lambda row: row.calls == 0)
    how = "one that pays for a call that succeeds, as artist, or fewer penalties on calls"
    explains = ("entropy collapse", "groups all wrong")
    return Finding("calls vanish", 0.88, what, "recipe.reward.name", how, looks, explains)


def never(p: Prepared) -> Finding | None:
    """A policy with a tool has never called it."""
    if p.key("rollout.format", "text") == _NO_TOOLS or not p.config or len(p.rows) < 16:
        return None
    if p.key("recipe.answer") == "calls":  # they are read from the answer and need not be run
        return None
    if any(row.calls for row in p.rows) or p.accuracy > 0.85:
        return None
    what = f"none of {len(p.rows)} trajectories of {span([row.step for row in p.rows])} calls a tool"
    how = "begin with a policy that calls it: retool sft on traces with programs; or rollout.format=none without a tool"
    return Finding("no calls", 0.87, what, "init_from", how, two(p.late_rows, lambda row: True), ("groups all wrong",))


def degenerate(p: Prepared) -> Finding | None:
    """The programs compute nothing, or are one and the same for many problems, and were not so at the start."""
    programs = [(record, call["code"]) for record in p.late for call in record["calls"] if call["code"]]
    before = [(record, call["code"]) for record in p.early for call in record["calls"] if call["code"]]
    if len(programs) < 10:
        return None
    late = mean([_computes_nothing(code) for _, code in programs])
    early = mean([_computes_nothing(code) for _, code in before])
    problems: dict[str, set] = defaultdict(set)
    for record, code in programs:
        problems[code.strip()].add(record["index"])
    uses = Counter(code.strip() for _, code in programs if len(problems[code.strip()]) >= 4)
    same, count = uses.most_common(1)[0] if uses else ("", 0)
    if late >= 0.5 and late > early + 0.2:
        what = f"{late:.0%} of the {len(programs)} programs of the last steps compute nothing, {early:.0%} at the start"
        looks = two([record for record, code in programs if _computes_nothing(code)], lambda record: True)
    elif count >= 0.5 * len(programs):
        text, many = " ".join(same.split())[:60], len(problems[same])
        what = f"{count} of the {len(programs)} programs of the last steps are {text!r}, for {many} problems"
        looks = two([record for record, code in programs if code.strip() == same], lambda record: True)
    else:
        return None
    how = "pay for right answers alone, or less for a call"
    return Finding("degenerate programs", 0.83, what, "recipe.reward.name", how, looks, ("groups all wrong",))


def _computes_nothing(code: str) -> bool:
    return all(_CONSTANT.fullmatch(line) for line in code.strip().splitlines())


def _kind(call: dict) -> str:
    """The last line of a failed call's error, without what differs from case to case."""
    if call["malformed"]:
        return "a call that cannot be read"
    lines = [line for line in (call["stderr"] or "").splitlines() if line.strip()]
    return _VARIABLE.sub("...", lines[-1].strip())[:100] if lines else call["status"]


def _remedy(kind: str, status: str) -> tuple[str, str]:
    """The key that a kind of failure is about, and how to change it."""
    if "cannot be read" in kind:
        return "rollout.format", "the one that the policy was cold-started in"
    if "ModuleNotFound" in kind or "ImportError" in kind:
        return "sandbox.preload", "install the module for the sandbox and name it there"
    if status == "timeout":
        return "sandbox.timeout_s", "raise it, or see why programs run so long"
    if status == "memory":
        return "sandbox.memory_mb", "raise it"
    return "init_from", "begin with a policy whose programs run: more, or other, traces in retool sft"
