"""Whether two final answers mean the same, by the rules of `grader/`; what none of them decides is different.

All happens in the calling thread, with limits to length, depth, terms and digits: no processes, no signals, nothing to
start or to close. Usable from any thread, Ray actor, event loop or forked child.
"""

import logging
from functools import lru_cache

from retool_mcore.rewards.grader.structure import decide

log = logging.getLogger(__name__)


@lru_cache(maxsize=100_000)
def _remembered(answer: str, truth: str, rounded: bool) -> list:
    """[verdict, who decided it, as reported to the next caller]"""
    return [decide(answer, truth, rounded), "front"]


def decide_once(answer: str, truth: str, rounded: bool = False) -> tuple[bool, str]:
    """Whether `answer` means the same as `truth`, and what decided: "front" (the rules), "memo" (their verdict, kept
    from before) or "undecided" (no rule did, which counts as different).

    rounded: whether decimals may stand for exact values (`grader/structure.py::decide`). A pair on which the rules
    raise, MemoryError and RecursionError included, is undecided and not remembered.
    """
    # A long answer is refused in no time and not worth its memory: at most some 50 MB in all.
    known = _remembered if len(answer) + len(truth) < 400 else _remembered.__wrapped__
    try:
        entry = known(answer, truth, rounded)
    except Exception as error:
        log.warning("the grader raised %.200r: undecided", error)
        return False, "undecided"
    if entry[0] is None:
        return False, "undecided"
    by, entry[1] = entry[1], "memo"
    return entry[0], by


def equivalent(answer: str, truth: str) -> bool:
    """Whether `answer` means the same as `truth`; `rounded` is off."""
    return decide_once(answer, truth)[0]
