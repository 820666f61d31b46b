"""Every regular expression of the package, read from its source, and the repeats that make one slow on the wrong text.

A repeat is unbounded when it may take any number of characters and give them back. Two of them that can take the same
character, one inside the other or side by side, can share a run of it in many ways: the time is quadratic or worse.
A possessive repeat (`*+`) or an atomic group gives nothing back.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import _compiler as compiler
from re import _constants as sre
from re import _parser as parser

FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
_UNIVERSE = [chr(code) for code in range(128)] + ["é", "٣", "\u2028", "中"]
_MANY = 64  # more than this many characters is unbounded for us


def patterns(folder: Path) -> Iterator[tuple[str, str, int]]:
    """(place, pattern, flags) of each literal pattern; a part that an f-string fills in stands as one letter."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr in FUNCTIONS and isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
                text = _text(node.args[0])
                if text is not None:
                    yield f"{path.relative_to(folder)}:{node.lineno}", text, _flags(node)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _flags(call: ast.Call) -> int:
    named = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
    return sum(int(getattr(re, name)) for name in named & {"DOTALL", "IGNORECASE", "MULTILINE", "VERBOSE"})


def slow(pattern: str, flags: int = 0) -> list[str]:
    """What is wrong with a pattern, in words."""
    found: list[str] = []
    _walk(list(parser.parse(pattern, flags)), flags, set(), found)
    return found


def _walk(items: Sequence, flags: int, pending: set[str], found: list[str]) -> set[str]:
    """The characters that an unbounded repeat, which nothing has to follow, may end this sequence with.

    pending: those that one may have ended just before it with."""
    for op, value in items:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, body = value
            taken = _first(list(body), flags)[0]
            if high > _MANY:
                if pending & taken:
                    found.append(f"adjacent repeats share {sorted(pending & taken)[0]!r}")
                last = _walk(list(body), flags, set(), found)
                if last & taken:
                    found.append(f"nested repeats share {sorted(last & taken)[0]!r}")
                ends = taken if _single(body) else last
                pending = ends | (pending if low == 0 else set())
            else:
                inner = _walk(list(body), flags, pending, found)
                pending = inner | (pending if low == 0 else set())
        elif op is sre.SUBPATTERN:
            pending = _walk(list(value[-1]), flags | value[1], pending, found)
        elif op is sre.BRANCH:
            pending = set().union(*(_walk(list(branch), flags, pending, found) for branch in value[1]))
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            if op is not sre.AT:
                _walk(list(value[1]), flags, set(), found)
        elif op in (sre.POSSESSIVE_REPEAT, sre.ATOMIC_GROUP):
            body = list(value[2] if op is sre.POSSESSIVE_REPEAT else value)
            _walk(body, flags, set(), found)
            if not (op is sre.POSSESSIVE_REPEAT and value[0] == 0):
                pending = set()
        else:
            pending = set()
    return pending


def _single(body: Sequence) -> bool:
    return len(body) == 1 and body[0][0] in (sre.IN, sre.ANY, sre.LITERAL, sre.NOT_LITERAL, sre.CATEGORY)


def _first(items: Sequence, flags: int) -> tuple[set[str], bool]:
    """(the characters that a sequence may begin with, whether it may be empty)."""
    begins: set[str] = set()
    for op, value in items:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            chars, empty = _first(list(value[2]), flags)
            empty = empty or value[0] == 0
        elif op is sre.SUBPATTERN:
            chars, empty = _first(list(value[-1]), flags | value[1])
        elif op is sre.ATOMIC_GROUP:
            chars, empty = _first(list(value), flags)
        elif op is sre.BRANCH:
            branches = [_first(list(branch), flags) for branch in value[1]]
            chars, empty = set().union(*(c for c, _ in branches)), any(e for _, e in branches)
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            chars, empty = set(), True
        else:
            chars, empty = _characters(op, value, flags), False
        begins |= chars
        if not empty:
            return begins, False
    return begins, True


def _characters(op, value, flags: int) -> set[str]:
    state = parser.State()
    state.flags = flags & ~re.VERBOSE
    one = compiler.compile(parser.SubPattern(state, [(op, value)]), state.flags)
    return {character for character in _UNIVERSE if one.fullmatch(character)}
