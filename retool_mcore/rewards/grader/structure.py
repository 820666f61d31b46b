"""Whether two structured answers are the same; scalars go to `scalar`. Three-valued throughout: None is "undecided"."""

import re
from collections.abc import Iterable

from retool_mcore.rewards.grader import named, reals, relations, solutions, units
from retool_mcore.rewards.grader.choices import choice
from retool_mcore.rewards.grader.nodes import Node, Unreadable, build
from retool_mcore.rewards.grader.scalar import same_scalar
from retool_mcore.rewards.grader.text import CLOSE_TEXT, MAX_CHARS, OPEN_TEXT, normal_form, phrase
from retool_mcore.rewards.grader.values import ROUNDED, parsed

_GROUPED = re.compile(r"[+-]?[$€£¥₹]? ?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,]).{0,40}", re.DOTALL)
_ASSIGNED = re.compile(r"([^,]*=\s*)([+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?)")
_THOUSANDS = re.compile(r"(?<![0-9,.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_COMMA = re.compile(r"([+-]?[0-9]+),([0-9]+)")


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    result: bool | None = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def _same_texts(answer: str, truth: str) -> bool | None:
    """The verdict on two normal forms."""
    answer, truth = solutions.family(answer, truth)
    if answer == truth or (len(wording := _said(answer)) > 4 and wording == _said(truth)):
        return True
    if (verdict := choice(answer, truth, same_scalar)) is not None:
        return verdict
    # A comma between digits may group thousands, set off decimals, or separate two numbers.
    for text, other, swap in ((answer, truth, False), (truth, answer, True)):
        if "," not in text:
            continue
        bare = _is_scalar(other)
        if _GROUPED.fullmatch(text) and bare:
            verdict = same_scalar(other, text) if swap else same_scalar(text, other)
            if verdict is not None:
                return verdict
        if "," not in other and (match := _ASSIGNED.fullmatch(text)):
            plain = match[1] + match[2].replace(",", "")
            return _same_texts(other, plain) if swap else _same_texts(plain, other)
        if (match := _COMMA.fullmatch(text)) and bare and "." in other:
            return same_scalar(f"{match[1]}.{match[2]}", other)
    if _GROUPED.fullmatch(answer) and _GROUPED.fullmatch(truth) and same_scalar(answer, truth):
        return True
    empty = [text.replace(" ", "") in (r"\emptyset", r"\{\}") for text in (answer, truth)]
    if all(empty):
        return True
    if all(nothing or phrase(text) is not None for nothing, text in zip(empty, (answer, truth), strict=True)):
        return same_scalar(answer, truth)
    try:
        verdict = _same_nodes(build(answer), build(truth))
    except Unreadable:
        verdict = None
    plain = _joined_groups(answer), _joined_groups(truth)
    return verdict if verdict or plain == (answer, truth) else _same_texts(*plain)


def _joined_groups(text: str) -> str:
    """`1,200 and 3,400` without its commas, where each groups thousands and words set the values apart."""
    if "," not in text or not re.search("and|or|;", text):
        return text
    plain = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text if "," in plain else plain


def _is_scalar(text: str) -> bool:
    try:
        return "," not in text and build(text).kind == "scalar"
    except Unreadable:
        return False


def _same_nodes(a: Node, t: Node) -> bool | None:
    if a.text == t.text:
        return True
    a, t = relations.member(a, t), relations.member(t)
    if a.kind == t.kind == "residue":
        return _residues(a, t)
    pair = {a.kind, t.kind}
    if (pair != {"scalar"} or r"\mathbb" in t.text) and (ours := reals.region(a)) and (true := reals.region(t)):
        sure = true.sure or (ours.sure and r"\cap" not in a.text)  # a pair's remark is no interval's
        if (sure and pair != {"list"}) or ours.name or true.name:
            return reals.same_regions(ours, true)
    if a.kind == "relation" or t.kind == "relation":
        return _relations(a, t)
    if a.kind == t.kind == "scalar":
        return same_scalar(a.text, t.text)
    if "residue" in pair:
        return False
    if "row" in pair:
        return _ordered(a.items, t.items)
    if "cases" in pair:
        return _unordered(a.items, t.items) if a.kind == t.kind else False
    if "matrix" in pair or "determinant" in pair:
        return _matrices(a, t)
    if "union" in pair:
        return _unions(a, t)
    if "scalar" in pair:
        return _with_scalar(a, t)
    return _sequences(a, t)


def _with_scalar(a: Node, t: Node) -> bool | None:
    scalar, other = (a, t) if a.kind == "scalar" else (t, a)
    plain = scalar.text
    if other.kind in ("set", "list", "bracket") and len(other.items) == 1 and not _holds_value(other.items[0]):
        return False
    if other.kind in ("set", "list") and len(other.items) == 1:
        return _same_nodes(*((a, t.items[0]) if a is scalar else (a.items[0], t)))
    if other.kind == "bracket" and len(other.items) == 1:
        return same_scalar(*((plain, other.items[0].text) if a is scalar else (other.items[0].text, plain)))
    is_value = parsed(plain) is not None and not plain.endswith(other.text)
    if is_value or phrase(plain) is not None or plain == r"\emptyset":
        return False
    return None  # units after a list, "4, 5 cm", or something unknown


def _sequences(a: Node, t: Node) -> bool | None:
    if a.kind == t.kind == "list" and named.differ_in_names(a, t):
        return False
    a, t = named.points(a), named.points(t)
    kinds = {a.kind, t.kind}
    if kinds == {"bracket"}:
        return a.brackets == t.brackets and _ordered(a.items, t.items)
    if kinds == {"set", "bracket"}:  # the one pair that solves it
        single, other = (a, t) if a.kind == "set" else (t, a)
        pair = len(single.items) == 1 and single.items[0].kind == "bracket" and other.brackets == "()"
        return _same_nodes(*((single.items[0], t) if single is a else (a, single.items[0]))) if pair else False
    if kinds == {"set", "list"}:
        single, other = (a, t) if a.kind == "set" else (t, a)
        if [item.kind for item in single.items] == ["bracket"] and named.distinct_names(other):
            return _sequences(*((single.items[0], t) if single is a else (a, single.items[0])))
    if kinds == {"list", "bracket"}:
        bracket, other = (a, t) if a.kind == "bracket" else (t, a)
        if bracket.brackets == "()" or (bracket.brackets == "[]" and len(bracket.items) > 2):
            return _ordered(named.values(a, True), named.values(t, True))
        # A truth of two values in square brackets may have been an interval.
        return False if len(bracket.items) == 2 or len(bracket.items) != len(other.items) else None
    if kinds == {"list"} and (_inequalities(a) or _inequalities(t)):
        # Joined by "or" they are a union, by "and" an intersection.
        return _unordered(a.items, t.items) if (a.join == "or") == (t.join == "or") else False
    names, others = (named.names_of(side) for side in (a, t))
    if names and others and names != others:
        return False
    if kinds == {"list"} and len(names) == len(others) == 1:  # `x = 1, 2` and `x_1 = 2, x_2 = 1`
        return _unordered(named.values(a), named.values(t))
    if "list" in kinds and named.order_counts(a, t):
        return _ordered(named.values(a), named.values(t))
    return _unordered(_distinct(a), _distinct(t))


def _ordered(a: tuple[Node, ...], t: tuple[Node, ...]) -> bool | None:
    if len(a) != len(t):
        return False
    return _all(_same_nodes(x, y) for x, y in zip(a, t, strict=True))


def _unordered(a: tuple[Node, ...], t: tuple[Node, ...]) -> bool | None:
    if len(a) != len(t):
        return False
    left_over, rest = [], list(t)
    for item in a:
        partner = next((n for n, other in enumerate(rest) if item.text == other.text), None)
        if partner is None:
            left_over.append(item)
        else:
            rest.pop(partner)
    open_rows = []
    for item in left_over:
        verdicts = []
        for n, other in enumerate(rest):
            verdicts.append(_same_nodes(item, other))
            if verdicts[-1]:
                rest.pop(n)
                break
        else:
            if None not in verdicts:
                return False
            open_rows.append(item)
    return None if open_rows else True


def _matrices(a: Node, t: Node) -> bool | None:
    if a.kind == t.kind:
        if [len(row.items) for row in a.items] != [len(row.items) for row in t.items]:
            return False if a.kind == "matrix" else None
        verdict = _all(_ordered(x.items, y.items) for x, y in zip(a.items, t.items, strict=True))
        return verdict if a.kind == "matrix" or verdict else None
    matrix, other = (a, t) if a.kind == "matrix" else (t, a)
    if matrix.kind == "matrix" and other.kind == "bracket" and other.brackets in ("()", "[]"):
        if all(item.kind == "bracket" for item in other.items) and len(other.items) == len(matrix.items):
            return _all(_ordered(x.items, y.items) for x, y in zip(a.items, t.items, strict=True))
        flat = tuple(cell for row in matrix.items for cell in row.items)
        if 1 in (len(matrix.items), len(matrix.items[0].items)) and len(flat) == len(other.items):
            return _ordered(flat, other.items)
        return False
    plain = other.kind == "scalar" and matrix.kind == "matrix" and parsed(other.text) is not None
    return False if plain or other.kind in ("list", "set", "bracket", "union") else None


def _unions(a: Node, t: Node) -> bool | None:
    left = a.items if a.kind == "union" else (a,)
    right = t.items if t.kind == "union" else (t,)
    if all(n.kind in ("bracket", "set") for n in (*left, *right)):
        return True if len(left) == len(right) and _unordered(left, right) else None
    return False if any(node.kind in ("list", "relation") for node in (a, t)) else None


def _residues(a: Node, t: Node) -> bool | None:
    """Classes of one modulus; of integers the representative does not count."""
    (left, modulus), (right, true_modulus) = a.items, t.items
    same = _same_nodes(modulus, true_modulus)
    if not same:
        return same
    return _same_nodes(*(relations.reduced(side, modulus) for side in (left, right)))


def _relations(a: Node, t: Node) -> bool | None:
    if a.kind == t.kind == "relation":
        return _two_relations(a, t)
    relation, other = (a, t) if a.kind == "relation" else (t, a)
    if other.kind == "bracket" and other.brackets == "()" and (values := named.chain(relation)):
        return _ordered(values, other.items) if relation is a else _ordered(other.items, values)
    if set(relation.operators) == {"="}:
        value = relations.assigned(relation, is_truth=relation is t)
        if value is None:
            return False
        return _same_nodes(value, other) if relation is a else _same_nodes(other, value)
    if other.kind in ("scalar", "list", "set"):
        # `5` for `x > 5`: no. A scalar that is no expression may be a condition in words.
        return False if other.kind != "scalar" or parsed(other.text) is not None else None
    return None


def _two_relations(a: Node, t: Node) -> bool | None:
    turned = tuple(relations.FLIPPED.get(op, op) for op in reversed(a.operators))
    if a.operators != t.operators == turned:
        a = Node("relation", a.text, a.items[::-1], turned)
    if (verdict := relations.proportional(a, t)) is not None:
        return verdict
    if a.operators == t.operators and len(a.operators) > 1 and set(a.operators) != {"="}:
        return _ordered(a.items, t.items)
    if set(a.operators) == set(t.operators) == {"="}:
        values = relations.assigned(a, is_truth=True), relations.assigned(t, is_truth=True)
        if all(values):
            return _assignments(a, t, *values)
        if a.items[0].text == t.items[0].text:
            return _same_nodes(a.items[-1], t.items[-1])
    return None


def _assignments(a: Node, t: Node, value: Node, true_value: Node) -> bool | None:
    left, right = a.items[0].text, t.items[0].text
    same = _same_nodes(value, true_value)
    if left == right or (same is not False and _same_nodes(a.items[0], t.items[0])):
        return same
    calls = relations.CALL.fullmatch(left), relations.CALL.fullmatch(right)
    if all(calls) and calls[0][1] == calls[1][1] and calls[0][2].isalpha() and calls[1][2].isalpha():
        renamed = re.sub(rf"(?<![\\A-Za-z]){calls[0][2]}(?![A-Za-z])", calls[1][2], value.text)
        return _same_nodes(build(renamed), true_value)
    if "y" in (left, right) and any(calls):
        return same
    if all(calls) and calls[0][2].isalpha() != calls[1][2].isalpha():
        return False
    if all(calls) and calls[0][1] == calls[1][1]:
        free = [parsed(v.text) for v in (value, true_value)]
        return same if all(p is not None and not p.symbols for p in free) else None
    if any(calls) or same is False:
        return False if same is False else None
    names = relations.NAME.fullmatch(left) and relations.NAME.fullmatch(right)
    return False if names else None


def _said(text: str) -> str:
    """A text that holds words, without what marks them and without capitals in them; "" for others."""
    plain = re.sub(
        rf"[{OPEN_TEXT}{CLOSE_TEXT} ]", "", re.sub(r"(?<![\\A-Za-z])[A-Za-z]{2,}", lambda m: m[0].lower(), text)
    )
    return plain if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4}", text) else ""


def _holds_value(node: Node) -> bool:
    r"""Whether a set's only element holds a value: `\{\{5\}\}` is not `\{5\}`, and `\{\emptyset\}` not `\emptyset`."""
    return node.kind in ("scalar", "relation") and node.text != r"\emptyset"


def _distinct(node: Node) -> tuple[Node, ...]:
    items = node.items
    if node.kind == "set":
        items = tuple({item.text: item for item in items}.values())
    return tuple(named.group(item) for item in items)


def _inequalities(node: Node) -> bool:
    return any(item.kind == "relation" and set(item.operators) & relations.ORDER for item in node.items)


def _rows(text: str) -> list[int] | None:
    """The number of entries in each line of a grid in plain text; None for any other text."""
    lines = [words for line in text.splitlines() if (words := line.strip(" `$").split())]
    if len(lines) < 2 or "\\" in text or len({len(words) for words in lines}) > 1:
        return None
    digits = len(lines[0]) > 1 or (len({len(words[0]) for words in lines}) == 1 and len(lines[0][0]) > 2)
    return [len(words) for words in lines] if digits else None


def decide(answer: str, truth: str, rounded: bool = False) -> bool | None:
    """Whether `answer` means the same as `truth`; None when no rule decides it.

    rounded: whether a decimal of enough places stands for the exact value, `1.414214` for the root of 2.
    Equal texts are the same; an empty side is not, nor are different texts when one is longer than MAX_CHARS.
    """
    if not answer.strip() or not truth.strip():
        return False
    if answer == truth:
        return True
    if max(len(answer), len(truth)) > MAX_CHARS:
        return False
    if (rows := _rows(truth)) and rows != _rows(answer):
        return False  # line breaks are a grid's form
    left, right = units.joined(normal_form(answer)), units.joined(normal_form(truth))
    if left.startswith(r"\approx"):
        if not relations.approximates(right):
            return False
        left = left.removeprefix(r"\approx").strip()
    right = right.removeprefix(r"\approx").strip()
    if not left or not right:
        return False
    token = ROUNDED.set(rounded)
    try:
        return _same_texts(left, right)
    finally:
        ROUNDED.reset(token)
