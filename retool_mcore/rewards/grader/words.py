"""Answers in words: what says that there is nothing, and words that say the same."""

import re

from retool_mcore.rewards.grader import TABLES
from retool_mcore.rewards.grader.text import CLAIM_WORDS, phrase
from retool_mcore.rewards.grader.values import form

_SIGNS = {"no solution": (r"\emptyset", r"\{\}"), "infinitely many": (r"\infty",)}
_SAME = {words: first for first, others in TABLES["same_words"].items() for words in others}
_NO = re.compile(r"(?:there (?:is|are|exists?) )?(?:no|not any) ((?:[a-z]+ ){0,4}[a-z]+?)(?: exists?| that work)?")
_ADJECTIVES = frozenset(["or", "and", "even", "other"])  # claims elsewhere, `no even integers` here


def _nothing(words: str) -> str | None:
    """Return what a phrase says there is none of, `integer roots`; "" where it does not name it; None for other
    phrases."""
    if _SAME.get(words, words) == "no solution" or words == "there are none":
        return ""
    match = _NO.fullmatch(words)
    if not match or not CLAIM_WORDS.isdisjoint(set(match[1].split()) - _ADJECTIVES):
        return None
    return " ".join(word.removesuffix("s") for word in match[1].split())


def same_words(a: str, t: str) -> bool | None:
    """The verdict on two scalars, at least one of them a phrase."""
    left, right = (side and re.sub(r"^(?:the|a|an) ", "", side) for side in (phrase(a), phrase(t)))
    if left is not None and right is not None:
        if _SAME.get(left, left) == _SAME.get(right, right):
            return True
        nothing = _nothing(left), _nothing(right)
        return None not in nothing and ("" in nothing or nothing[0] == nothing[1])
    words, other = (left, t) if left is not None else (right, a)
    if words is not None and other in _SIGNS["no solution"] and (kind := _nothing(words)) is not None:
        return not kind or words.endswith("s") or "such" in words  # of things that form a set
    if signs := _SIGNS.get(_SAME.get(words, words)):
        return other in signs
    value = form(other)
    return False if value is not None and value.rational() is not None else None
