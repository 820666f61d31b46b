"""Solutions in other words: conditions as the numbers that they describe, families over the integers as terms."""

import itertools
import re

from retool_mcore.rewards.grader.nodes import Node, build
from retool_mcore.rewards.grader.relations import assigned, interval, real_value
from retool_mcore.rewards.grader.tables import TABLES
from retool_mcore.rewards.grader.text import CLOSE_TEXT, OPEN_TEXT

_WITHOUT = re.compile(r"(?:\\mathbb\{?R\}?|\(-\\infty,\\infty\)) ?(?:\\setminus|-) ?(\\\{.*\\\})")
_CLAUSE = re.compile(r"(?:,|\(| for | where | with )([^,()]*(?:\\in ?\\mathbb ?\{?Z\}?|integer)[^,()]*)\)?$")
_SAYS = frozenset(TABLES["integers"].split())
_LETTER = r"(?<![\\A-Za-z]){}(?![A-Za-z])"


def real_numbers(node: Node) -> tuple[str, Node] | None:
    r"""(the unknown or "", the intervals) of `x \le 1 or x > 3`, `x \ne 1, 2`, `\mathbb{R}\setminus\{1\}`."""
    items = node.items
    if node.kind == "scalar" and (match := _WITHOUT.fullmatch(node.text)):
        return _without("", build(match[1]).items)
    if node.kind != "list" or items[0].kind != "relation":
        return None
    name, operators = items[0].items[0].text, items[0].operators
    if operators == (r"\ne",) and node.join != "or":
        same = [item.kind == "relation" and (item.items[0].text, item.operators) == (name, operators) for item in items]
        return _without(name, [item.items[1] if is_same else item for item, is_same in zip(items, same, strict=True)])
    if node.join != "or" or any(item.kind != "relation" for item in items):
        return None
    found = [piece for item in items if (piece := _piece(item)) is not None]
    if len(found) < len(items) or len({unknown.text for unknown, _ in found}) > 1:
        return None
    return found[0][0].text, Node("union", node.text, tuple(piece for _, piece in found))


def _piece(relation: Node) -> tuple[Node, Node] | None:
    if relation.operators != ("=",) or (value := assigned(relation, is_truth=True)) is None:
        return interval(relation)
    return relation.items[0], Node("set", rf"\{{{value.text}\}}", (value,))


def _without(name: str, points) -> tuple[str, Node] | None:
    places = [(real_value(point.text), point.text) for point in points]
    if any(point.kind != "scalar" for point in points) or None in [value for value, _ in places]:
        return None
    ends = [r"-\infty", *(text for _, text in sorted(places)), r"\infty"]
    return name, build(r"\cup".join(f"({low},{high})" for low, high in itertools.pairwise(ends)))


def family(answer: str, truth: str) -> tuple[str, str]:
    r"""Where the truth says that a letter of it is any integer: both without that clause, the letter the same."""
    terms, name = _family(truth)
    ours, other = _family(answer)
    letters = set(re.findall(_LETTER.format("[kmn]"), ours))
    other = other or (letters.pop() if len(letters) == 1 else name)
    if not name or (name != other and re.search(_LETTER.format(name), ours)):
        return answer, truth
    return re.sub(_LETTER.format(other), name, ours), terms


def _family(text: str) -> tuple[str, str]:
    """(text without its last clause, the letter that is an integer by that clause, "" for none)"""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ")
    if match := _CLAUSE.search(plain):
        letters = re.findall(_LETTER.format("[a-z]"), match[1])
        if len(letters) == 1 and _SAYS.issuperset(re.findall("[a-z]{2,}", match[0])):
            return text[: match.start()].strip(" "), letters[0]
    return text, ""
