"""One bug in a Python function: every small slip that its source allows, as replacements in the text."""
# Only nodes that have a position, and constants that are numbers, come this far.
# mypy: disable-error-code="attr-defined, operator, type-var, str-bytes-safe"

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# The slips: an operator or a name, and what stands in its place.
_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_NAMES = {
    "min": "max",
    "max": "min",
    "append": "extend",
    "True": "False",
    "lower": "upper",
    "upper": "lower",
}


@dataclass(frozen=True)
class Bug:
    """The characters `start` to `end` of a source become `text`; `name` says what changed, without its place."""

    start: int
    end: int
    text: str
    name: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def bugs(source: str) -> list[Bug]:
    """All bugs that this module knows for `source` (ASCII), in the order of the text. Each keeps it parsable."""
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def span(node: ast.AST) -> tuple[int, int]:
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Bug]:
        if type(operator) not in _OPERATORS:
            return
        old, new = _OPERATORS[type(operator)]
        start = source.find(old, span(left)[1], span(right)[0])
        if start >= 0:
            yield Bug(start, start + len(old), new, f"{old} became {new}")

    def of(node: ast.AST) -> Iterator[Bug]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right, operator in zip(operands, node.comparators, node.ops, strict=False):
                    yield from between(left, right, operator)
            case ast.BinOp():
                yield from between(node.left, node.right, node.op)
            case ast.BoolOp():
                yield from between(node.values[0], node.values[1], node.op)
            case ast.UnaryOp(op=ast.Not()):
                start, _ = span(node)
                yield Bug(start, span(node.operand)[0], "", "a not is missing")
            case ast.Constant(value=int()) if not isinstance(node.value, bool):
                for value in {node.value + 1, max(node.value - 1, 0)} - {node.value}:
                    yield Bug(*span(node), str(value), f"{node.value} became {value}")
            case ast.Name() | ast.Constant(value=True) if source[slice(*span(node))] in _NAMES:
                old = source[slice(*span(node))]
                yield Bug(*span(node), _NAMES[old], f"{old} became {_NAMES[old]}")
            case ast.Attribute() if node.attr in _NAMES:
                end = span(node)[1]
                yield Bug(end - len(node.attr), end, _NAMES[node.attr], f"{node.attr} became {_NAMES[node.attr]}")

    candidates = [bug for node in ast.walk(ast.parse(source)) for bug in of(node)]
    return sorted(
        (bug for bug in candidates if _parses(bug.apply(source))), key=lambda bug: (bug.start, bug.end, bug.text)
    )


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
