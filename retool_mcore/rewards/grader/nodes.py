"""The outer structure of an answer: lists, sets, tuples, intervals, unions, matrices, relations, around scalars."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from retool_mcore.rewards.grader.text import CLOSE_TEXT, MAX_CHARS, OPEN_TEXT, phrase

MAX_ITEMS = 200
MAX_NESTING = 12

_JOIN_MARKED = re.compile(rf"{OPEN_TEXT}\s*,?\s*(and|or|and/or|,|;)\s*{CLOSE_TEXT}", re.IGNORECASE)
_JOIN = re.compile(r"(?:,\s*)?(?:(?<=[0-9)}\]])(and|or)|(?<![A-Za-z\\])(and|or)(?![A-Za-z]))")
_LISTED = re.compile("[,;]|and|or")
_RELATION = re.compile(r"\\(?:le|ge|ne|approx|in|equiv|sim|cong|to|notin)(?![A-Za-z])|[=<>]")
_MATRIX = re.compile(
    r"(-?[0-9]*|-?\\frac\{-?[0-9]+\}\{[0-9]+\})\[?\(?\\begin\{([pbBvV]?matrix|[pb]?smallmatrix|array)\}((?:(?!\\begin).)*)\\end\{\2\}\)?\]?"
    rf" *(\^ ?[{{ {OPEN_TEXT}]*(?:T|\\top|\\intercal)[{CLOSE_TEXT} }}]*)?(?: *\\(?:cdot|times) *(?=\S)| *)",
    re.DOTALL,
)
_CASES = re.compile(
    r"(?:\\begin\{(?:cases|aligned)\}|\\\{ ?\\begin\{array\}\{[lcr]+\})([^<>]*=[^<>]*)\\end\{[a-z]+\}", re.DOTALL
)
_PIECEWISE = re.compile(r"\\begin\{cases\}((?:(?!\\begin).)*&(?:(?!\\begin).)*)\\end\{cases\}", re.DOTALL)
_IF = re.compile(rf"[{OPEN_TEXT} ]*(?:if|for|when)?[{CLOSE_TEXT} ]*")
_BUILDER = re.compile(
    r"[a-z] ?(?:\\in ?\\mathbb ?\{?R\}?)? ?[|:] ?((?:\|[a-z]\||[^|:])*(?:[<>]|\\[lgn]e(?![a-z])).*)", re.DOTALL
)
_CUP = re.compile(r"\\cup")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)?", re.DOTALL)
_MODULUS = re.compile(
    rf"\(? ?(?:\\[pb]?mod|{OPEN_TEXT}\s*mod(?:ulo)?\s*{CLOSE_TEXT}|(?<![A-Za-z\\])mod(?:ulo)?) ?"
    r"(\{[^{}]*\}|[0-9]+|[A-Za-z]|\([^()]*\)) ?\)?$"
)
_ASSIGNS = re.compile(r"\\equiv|=")
_OPENERS, _CLOSERS = "([{", ")]}"
_FRENCH = re.compile(r"([\[\]])([^\[\]]*)([\[\]])")


@dataclass(frozen=True)
class Node:
    r"""One part of an answer.

    kind: "scalar"; "list" (bare `1, 2`; join is ",", "and" or "or"), "set" (`\{1, 2\}`), "bracket" (`(1, 2]`, brackets
    its two ends), "union", "matrix" (items are rows), "relation" (`x = 5`; operators between the items).
    "residue" (`3 \pmod 7`: value and modulus), "cases" (rows of a value and its condition). text: its source, in
    normal form.
    """

    kind: str
    text: str
    items: tuple["Node", ...] = ()
    operators: tuple[str, ...] = ()
    brackets: str = ""
    join: str = ""


class Unreadable(ValueError):
    """The text has no structure that this module knows."""


def _depths(text: str):
    """(position, character or command, depth) of everything outside words; brackets count whatever their kind."""
    depth = at = 0
    while at < len(text):
        c = text[at]
        if c == OPEN_TEXT:
            end = text.find(CLOSE_TEXT, at)
            if end < 0:
                raise Unreadable("words")
            yield at, text[at : end + 1], depth
            at = end + 1
            continue
        if c == "\\":
            token = _COMMAND.match(text, at)[0]
            if token in (r"\begin", r"\{", r"\lfloor", r"\lceil"):
                depth += 1
            yield at, token, depth
            if token in (r"\end", r"\}", r"\rfloor", r"\rceil"):
                depth -= 1
            at += len(token)
        else:
            depth += c in _OPENERS
            yield at, c, depth
            depth -= c in _CLOSERS
            at += 1
        if depth < 0:
            raise Unreadable("unbalanced")
    if depth:
        raise Unreadable("unbalanced")


def _split(text: str, separators, mark: re.Pattern | None = None) -> tuple[list[str], list[str]]:
    if mark is not None and not mark.search(text):  # the scan costs as much as everything else
        return [text], []
    parts, matches, start = [], [], 0
    for at, token, depth in _depths(text):
        if depth == 0 and at >= start and (length := separators(text, at, token)):
            parts.append(text[start:at].strip())
            matches.append(text[at : at + length].strip())
            start = at + length
    return [*parts, text[start:].strip()], matches


def _list_separator(text: str, at: int, token: str) -> int:
    if token in (",", "a", "o") and (match := _JOIN.match(text, at)):
        return len(match[0])
    return len(token) if token in (",", ";") else 0


def _relation_separator(text: str, at: int, token: str) -> int:
    match = _RELATION.match(text, at)
    return len(match[0]) if match else 0


def _any_of(*separators: str) -> Callable[[str, int, str], int]:
    return lambda text, at, token: len(token) if token in separators else 0


def _enclosed(text: str) -> bool:
    """Whether the bracket that opens the text closes at its very end."""
    opener = 2 if text.startswith(r"\{") else 1
    for at, token, depth in _depths(text):
        if depth == 1 and (token in ")]}" or token == r"\}"):
            return at + len(token) == len(text)
        if depth == 0 and at >= opener:
            return False
    return False


@lru_cache(maxsize=4096)
def build(text: str, nesting: int = 0) -> Node:
    """The structure of a text in normal form. Raises Unreadable."""
    if nesting > MAX_NESTING:
        raise Unreadable("too deep")
    text = text.strip()
    if nesting == 0:
        text = _JOIN_MARKED.sub(r" \1 ", text).strip()
        if match := _CASES.fullmatch(text):
            text = re.sub(r" *\\\\ *", ",", match[1].replace("&", "")).strip(" ,")
    if not text:
        raise Unreadable("empty")
    if (match := _FRENCH.fullmatch(text)) and (match[1] == "]" or match[3] == "["):
        ends = {"]": "(", "[": "["}[match[1]] + {"]": "]", "[": ")"}[match[3]]
        return _bracket(text, match[2], ends, nesting)
    if (match := _MODULUS.search(text)) and (value := _ASSIGNS.split(text[: match.start()])[-1].strip(" ,(")):
        return Node("residue", text, (build(value, nesting + 1), build(match[1], nesting + 1)))
    if ";" in text:
        groups, _ = _split(text, _any_of(";"))
        if len(groups) > 1 and any("," in group for group in groups):
            return Node("list", text, tuple(build(group, nesting + 1) for group in groups if group), join=",")
    items, separators = _split(text, _list_separator, _LISTED)
    if len(items) > 1:
        return _list(text, items, separators, nesting)
    parts, operators = _split(text, _relation_separator, _RELATION)
    if len(parts) > 1:
        if not all(parts) or r"\pm" in parts[0] + "".join(operators):
            raise Unreadable("relation")
        if r"\pm" in text and set(operators) == {"="}:
            return _signs(text, nesting)
        return Node("relation", text, tuple(build(p, nesting + 1) for p in parts), tuple(operators))
    pieces, _ = _split(text, _any_of(r"\cup"), _CUP)
    if len(pieces) > 1:
        return Node("union", text, tuple(build(piece, nesting + 1) for piece in pieces))
    return _single(text, nesting)


def _list(text: str, items: list[str], found: list[str], nesting: int) -> Node:
    items = [item for n, item in enumerate(items) if item or n < len(items) - 1]
    if not all(items) or len(items) > MAX_ITEMS:
        raise Unreadable("list")
    nodes: list[Node] = []
    for item in items:
        node = build(item, nesting + 1)
        nodes += node.items if node.kind == "list" and r"\pm" in item else [node]
    words = {word.strip(", ") for word in found} - {"", ";"}
    join = words.pop() if len(words) == 1 else ("," if not words else "mixed")
    return Node("list", text, tuple(nodes), join=join) if len(nodes) > 1 else nodes[0]


def _signs(text: str, nesting: int) -> Node:
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return Node("list", text, (build(upper, nesting + 1), build(lower, nesting + 1)), join=",")


def _single(text: str, nesting: int) -> Node:
    if match := _PIECEWISE.fullmatch(text):
        rows = [row.split("&") for row in re.split(r" *\\\\ *", match[1]) if row.strip()]
        if any(len(row) != 2 for row in rows):
            raise Unreadable("cases")
        cases = [(value.strip(" ,"), _IF.sub("", condition, 1)) for value, condition in rows]
        return Node(
            "cases", text, tuple(Node("row", "&".join(t), tuple(build(x, nesting + 1) for x in t)) for t in cases)
        )
    if r"\begin{" in text and (rows := _sum_of_matrices(text)):
        nodes = tuple(Node("row", "&".join(row), tuple(build(cell, nesting + 1) for cell in row)) for row in rows)
        return Node("determinant" if "vmatrix}" in text.lower() else "matrix", text, nodes)
    if text.startswith(r"\{") and text.endswith(r"\}") and _enclosed(text):
        inner = text[2:-2].strip()
        if not inner:
            return Node("scalar", r"\emptyset")
        if _enclosed(inner) and inner.startswith(r"\{"):
            return Node("set", text, (build(inner, nesting + 1),))
        if match := _BUILDER.fullmatch(inner):
            return build(match[1], nesting + 1)
        if "|" in inner or ":" in inner or r"\in" in inner or r"\ldots" in inner or r"\dots" in inner:
            raise Unreadable("set by a condition")
        node = build(inner, nesting + 1)
        if node.kind == "list" and any(_RELATION.search(item.text) for item in node.items):
            return node
        return Node("set", text, node.items if node.kind == "list" else (node,))
    if text[0] in "([" and text[-1] in ")]" and _enclosed(text):
        return _bracket(text, text[1:-1], text[0] + text[-1], nesting)
    if text[0] == "{" and text[-1] == "}" and _enclosed(text):
        return build(text[1:-1], nesting + 1)
    if r"\pm" in text:
        return _signs(text, nesting)
    if text in (r"\mathbb{R}", "R") or phrase(text) in ("all real numbers", "all reals", "real numbers", "all real x"):
        return build(r"(-\infty,\infty)", nesting + 1)
    return Node("scalar", text)


def _bracket(text: str, inner: str, ends: str, nesting: int) -> Node:
    items, _ = _split(inner, _any_of(",", ";"))
    if len(items) > 1:
        if not all(items) or len(items) > MAX_ITEMS:
            raise Unreadable("tuple")
        if any(r"\pm" in item for item in items):
            return _signs(text, nesting)
        nodes = tuple(build(item, nesting + 1) for item in items)
        if all(item.operators == ("=",) for item in nodes):
            return Node("list", text, nodes, join=",")
        return Node("bracket", text, nodes, brackets=ends)
    node = build(inner, nesting + 1)
    if node.kind == "scalar" and ends == "[]":
        return Node("bracket", text, (node,), brackets=ends)
    return Node("scalar", text) if node.kind == "scalar" else node


def _sum_of_matrices(text: str) -> list[list[str]] | None:
    """The cells of a matrix, or of a sum of products of them, not worked out; None where something else stands too."""
    terms, signs = _split(text, _any_of("+", "-"))
    if terms[0]:
        signs = ["+", *signs]
    products = [_product_of_matrices(term) for term in terms[len(terms) - len(signs) :]]
    if None in products or (len(products) > 1 and "vmatrix}" in text.lower()):
        return None
    if len({(len(product), len(product[0])) for product in products}) > 1:
        raise Unreadable("matrices of other sizes")
    if len(products) == 1 and signs == ["+"]:
        return products[0]
    signed = [[[f"{sign}({cell})" for cell in row] for row in rows] for sign, rows in zip(signs, products, strict=True)]
    return [["".join(cells) for cells in zip(*rows, strict=True)] for rows in zip(*signed, strict=True)]


def _product_of_matrices(text: str) -> list[list[str]] | None:
    at, product = 0, []
    while match := _MATRIX.match(text, at):
        cells = _cells(match)
        if match[4]:
            cells = [list(column) for column in zip(*cells, strict=True)]
        if product and (len(product[0]) != len(cells) or "v" in match[2].lower()):
            raise Unreadable("matrices that have no product")
        columns = list(zip(*cells, strict=True))
        dots = [["+".join(f"({a})*({b})" for a, b in zip(row, c, strict=True)) for c in columns] for row in product]
        product, at = dots or cells, match.end()
        if any(len(cell) > MAX_CHARS for row in product for cell in row):
            raise Unreadable("matrices too large")
    return product if at == len(text) and product else None


def _cells(match: re.Match) -> list[list[str]]:
    factor = {"": "", "-": "-1"}.get(match[1], match[1])
    body = re.sub(r"\\hline", "", match[3])
    if match[2] == "array":
        body = re.sub(r"^\{[^{}]*\}", "", body)
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", body) if row.strip()]
    cells = [[cell.strip() for cell in row.split("&")] for row in rows]
    if not cells or len({len(row) for row in cells}) != 1 or not all(all(row) for row in cells):
        raise Unreadable("matrix")
    return [[f"({factor})*({cell})" if factor else cell for cell in row] for row in cells]
