r"""Finding the one answer that a response commits to.

Three policies (`POLICIES`), a choice of the recipe. Which text may hold the answer at all (no code, no interpreter
output) is decided before, by `rollout/trajectory.py::answer_text`. A response that commits to several answers has none:
boxes side by side are a list (`\boxed{1}, \boxed{2}` is the answer `1, 2`), other boxes of one paragraph that differ,
or an alternative behind the box ("or 7"), are no answer. What stands in an earlier paragraph, or before a correction
("wait", "actually"), is not the final answer and does not count.
"""

import re

from retool_mcore.data.boxed import boxes
from retool_mcore.errors import UserError
from retool_mcore.rewards.grader.text import MAX_CHARS, normal_form

# Every repeat that another one may follow is possessive (`*+`): nothing that a policy writes is read twice.
_PARAGRAPH = re.compile(r"\n[ \t]*+\n")
# Between boxes that belong together: mathematical delimiters, punctuation, connectives.
_BESIDE = re.compile(
    r"(?>(?:\s|[$,;.*&]|\\[,;:! ()\[\]]|\\q?quad|\\\\|\\text\{\s*+(?:;|,?\s*+(?:and|or)|,)\s*+\}"
    r"|(?:and|or)(?![A-Za-z]))*)"
)
_CORRECTION = re.compile(
    r"\b(?:wait|no|actually|correction|corrected|sorry|instead|rather|oops|hmm|mistake|wrong|incorrect|recheck)\b",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(
    r"[\s$.*]*+(?:\\[)\]])?[\s$.*,]*+(?:or|\\text\{\s*+or\s*+\})\s++"
    r"(?>(?:(?:maybe|perhaps|possibly|else|it|is|could|be|also)\s++)*)[$(\\]*+-?[0-9]",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_LEAD = re.compile(
    r"^[\s>*_#-]*+(?>(?:(?:so|thus|hence|therefore)[, ]++)*)(?:(?:the|my|our)\s++)?(?:(?:final|correct)\s++)?answer\b"
    r"[*_]*+\s*+(?:is|:|=)[\s:*_]*+",
    re.IGNORECASE,
)

_MAX_SPELLINGS = 32  # of one answer


def _same(contents: list[str]) -> bool:
    spelt = set(contents)
    if len(spelt) > 1 and (len(spelt) > _MAX_SPELLINGS or max(map(len, spelt)) > MAX_CHARS):
        return False  # the grader reads no longer answer either
    return len(spelt) == 1 or len({normal_form(content) for content in spelt}) == 1


def _boxed(text: str) -> str | None:
    boxed = boxes(text)
    if not boxed or _ALTERNATIVE.match(text, boxed[-1][1]):
        return None
    group = [boxed[-1]]
    for box in reversed(boxed[:-1]):
        between = text[box[1] : group[-1][0]]
        if len(between) > 200 or not _BESIDE.fullmatch(between):
            break
        group.append(box)
    contents = [box[2] for box in reversed(group)]
    if not _same(contents):
        return ", ".join(contents)
    start = max((match.end() for match in _PARAGRAPH.finditer(text, 0, group[-1][0])), default=0)
    start = max((match.end() for match in _CORRECTION.finditer(text, start, group[-1][0])), default=start)
    others = [box[2] for box in boxed[: -len(group)] if box[0] >= start]
    return contents[-1] if _same([*others, contents[-1]]) else None


def _answer_tag(text: str) -> str | None:
    contents, opened = [], None
    for tag in _TAG.finditer(text):
        if not tag[1] and opened is None:
            opened = tag.end()
        elif tag[1] and opened is not None:
            contents.append(text[opened : tag.start()].strip())
            opened = None
    if not contents or not _same(contents):
        return None
    return _boxed(contents[-1]) if boxes(contents[-1]) else contents[-1]


def _final_line(text: str) -> str | None:
    lines = [line for line in text.splitlines() if line.strip(" \t*_#$")]
    if not lines:
        return None
    line = lines[-1].strip()
    if boxes(line):
        return _boxed(line)
    line = _LEAD.sub("", line).removeprefix("####").strip().strip("*_").strip()
    return line or None


MOST_CHARACTERS = 400_000  # ten times what 16,384 tokens are: a search in more holds all other threads too long
POLICIES = {"boxed": _boxed, "answer_tag": _answer_tag, "final_line": _final_line}


def extract(text: str, policy: str = "boxed") -> str | None:
    r"""The answer that `text` commits to, "" for an empty box; None without one, or with several that differ.

    policy: "boxed", the last `\boxed{}` with balanced braces; "answer_tag", what `<answer>...</answer>` holds (or the
    box in it); "final_line", the last line that is not empty, without "The answer is". Raises UserError for any other.
    Of a longer text the last MOST_CHARACTERS count.
    """
    if policy not in POLICIES:
        raise UserError(f"recipe.answer must be one of {', '.join(POLICIES)}, got {policy!r}.")
    return POLICIES[policy](text[-MOST_CHARACTERS:])
