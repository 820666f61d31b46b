"""Function calls written as Python text, `[Get Weather(city="Rome", days=3), f()]`, as ToolACE has them."""

import ast
import re
from typing import Any

from retool_mcore.data.records import MalformedRow

_NAME = re.compile(r"\s*+(?P<name>[^\s\[\](),='\"][^\[\](),='\"]*+)\(")
_NEXT = re.compile(r"\s*+(,|\Z)")
_CONSTANTS = {"true": True, "false": False, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def read_calls(text: str) -> list[dict]:
    """The calls as [{"name", "arguments"}]. Names may hold spaces; arguments are Python's or JSON's literals.

    Raises MalformedRow for anything else, such as an argument without a name or a value that is no literal.
    """
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        raise MalformedRow("a call is not written as [name(argument=value), ...]")
    body, position, calls = text[1:-1], 0, []
    while True:
        match = _NAME.match(body, position)
        if match is None:
            raise MalformedRow("a call is not written as [name(argument=value), ...]")
        end = _closing(body, match.end() - 1)
        calls.append({"name": match["name"].rstrip(), "arguments": _arguments(body[match.end() : end])})
        follows = _NEXT.match(body, end + 1)
        if follows is None:
            raise MalformedRow("a call is not written as [name(argument=value), ...]")
        if not follows[1]:
            return calls
        position = follows.end()


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes, brackets inside strings left out of the count."""
    expected, quote, position = [], None, opening
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = None
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
        elif expected and character == expected[-1]:
            expected.pop()
            if not expected:
                return position
        position += 1
    raise MalformedRow("a call has a bracket that is never closed")


def _arguments(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MalformedRow("a call's arguments are not Python literals by name") from None
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise MalformedRow("a call's arguments are not Python literals by name")
    return {keyword.arg: _literal(keyword.value) for keyword in call.keywords}


def _literal(node: ast.expr) -> Any:
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and name.id not in _CONSTANTS:
            raise MalformedRow("a call's arguments are not Python literals by name")
    try:
        value = ast.literal_eval(_Constants().visit(ast.fix_missing_locations(node)))
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise MalformedRow("a call's arguments are not Python literals by name") from None
    return list(value) if isinstance(value, tuple) else value


class _Constants(ast.NodeTransformer):
    """JSON's true, false and null as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:  # noqa: N802, the name that ast asks for
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)
