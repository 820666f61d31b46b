"""Families of solutions over the integers, as terms with a letter for any integer."""

import re

from retool_mcore.rewards.grader import TABLES
from retool_mcore.rewards.grader.text import CLOSE_TEXT, OPEN_TEXT

_CLAUSE = re.compile(r"(?:,|\||:|\(| for | where | with )([^,()]*(?:\\in ?\\mathbb ?\{?Z\}?|integer)[^,()]*)\)?$")
_SAYS = frozenset(TABLES["integers"].split())
_LETTER = r"(?<![\\A-Za-z]){}(?![A-Za-z])"


def family(answer: str, truth: str) -> tuple[str, str]:
    r"""Return both sides without the truth's clause that a letter is any integer, with the same letter."""
    terms, name = _family(truth)
    ours, other = _family(answer)
    letters = set(re.findall(_LETTER.format("[kmn]"), ours))
    other = other or (letters.pop() if len(letters) == 1 else name)
    if not name or (name != other and re.search(_LETTER.format(name), ours)):
        return answer, truth
    return re.sub(_LETTER.format(other), name, ours), terms


def _family(text: str) -> tuple[str, str]:
    """(text without its last clause, the letter that is an integer by that clause, "" for none)"""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ")
    if match := _CLAUSE.search(plain):
        letters = re.findall(_LETTER.format("[a-z]"), match[1])
        if len(letters) == 1 and _SAYS.issuperset(re.findall("[a-z]{2,}", match[0])):
            return text[: match.start()].strip(" "), letters[0]
    return text, ""
