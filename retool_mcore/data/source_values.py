"""Java and JavaScript literals as values, as the Berkeley leaderboard reads them.

In its rows for these languages every argument is a text that holds a literal of the parameter's type, as `5L` for a
long. The forms are those of bfcl_eval/eval_checker/ast_eval/type_convertor; a text in another form stays a text.
"""

import re
from collections.abc import Callable
from typing import Any

LANGUAGES = ("java", "javascript")
_MAX_CHARACTERS = 1000  # a longer text is no literal: some of the patterns below take quadratic time

_JAVA = {
    "byte": int, "short": int, "integer": int, "float": float, "double": float, "long": int, "boolean": bool,
    "char": str, "Array": list, "ArrayList": list, "HashMap": dict, "String": str, "any": str,
}  # fmt: skip
_JAVASCRIPT = {
    "String": str, "integer": int, "float": float, "Bigint": int, "Boolean": bool, "dict": dict, "array": list,
    "any": str,
}  # fmt: skip
_WITH_ITEMS = ("Array", "ArrayList", "array")

_NUMBERS = {
    "java": {
        "byte": r"(-?\d+)", "short": r"(-?\d+)", "integer": r"(-?\d+)", "long": r"(-?\d+)[lL]",
        "float": r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[fF]", "double": r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)",
    },
    "javascript": {"integer": r"(-?\d+)", "Bigint": r"(-?\d+)n", "float": r"(-?\d+(?:\.\d+)?)"},
}  # fmt: skip
_JAVA_LIST = re.compile(r"new\s+ArrayList<\w*+>\(Arrays\.asList\(([^()\n]+)\)\)")
_JAVA_ADDED = re.compile(r"new\s+ArrayList<\w*+>\(\)\s*+\{\{((?>(?:\s*+add\([^()\n]+\);?)*))\s*+\}\}")
_JAVA_NO_ITEM = re.compile(r"new\s+ArrayList<\w*+>\(\)")
_JAVA_ARRAY = re.compile(r"new\s+\w+\[\]\s*+\{([^{}\n]*+)\}")
_JAVA_MAP = re.compile(
    r"new\s+HashMap<[\w\s,<>]*>\s*+\(\)(?:\s*+\{\s*+\{((?>(?:\s*+put\(\"[^\"(){}\n]*+\",\s*+[^(){}\n]*+\);?)*))\s*+\}\s*+\})?"
)
_ADDED = re.compile(r"add\(([^()\n]+)\)")
_PUT = re.compile(r"put\(\"([^\"(){}\n]*+)\",\s*+([^(){}\n]*+)\)")
_JS_LISTS = re.compile(r"\[\s*+\[[^\[\]\n]*+\]\s*+(?>(?:,\s*+\[[^\[\]\n]*+\]\s*+)*)\]")
_JS_LIST = re.compile(r"\[([^\[\]\n]*+)\]|new\s+Array\(([^()\[\]\n]*+)\)")
_JS_OBJECT = re.compile(r"\{([^{}\n]*+)\}")
_JS_PAIR = re.compile(r"([^:]+):\s*+(.*?)(?:,\s*+(?=[^,]+:)|$)")


def source_value(language: str, kind: str, items: str | None, text: Any) -> tuple[type | None, type | None, Any]:
    """Return (type of the value, type of its items, the value) of a literal of the type `kind`.

    kind, items: the language's names of types. The value stays `text` where that is no such literal. The first is None
    for what is no text, and for a type that the leaderboard's checker does not read.
    """
    kinds: dict[str, type] = _JAVA if language == "java" else _JAVASCRIPT
    if not isinstance(text, str) or kind not in kinds:
        return None, None, text
    inner = items if kind in _WITH_ITEMS else None
    if inner is not None and inner not in kinds:
        return None, None, text
    read = _java if language == "java" else _javascript
    value = read(text, kind, inner) if len(text) <= _MAX_CHARACTERS else text
    return kinds[kind], kinds[inner] if inner else None, value


def _number(language: str, text: str, kind: str) -> Any:
    match = re.fullmatch(_NUMBERS[language][kind], text, re.ASCII)
    return text if match is None else float(match[1]) if kind in ("float", "double") else int(match[1])


def _java(text: str, kind: str, items: str | None = None) -> Any:
    if kind in _NUMBERS["java"]:
        return _number("java", text, kind)
    if kind == "boolean":
        return text == "true" if text in ("true", "false") else text
    if kind == "ArrayList":
        return _java_list(text, items)
    if kind == "Array":
        match = _JAVA_ARRAY.fullmatch(text)
        parts = [part.strip() for part in match[1].split(",") if part.strip()] if match else []
        return [_java(part, items or "any") for part in parts] if match else text
    if kind == "HashMap":
        match = _JAVA_MAP.fullmatch(text)
        return (
            {key: _plain(value.strip(), '"', _JAVA_PLAIN) for key, value in _PUT.findall(match[1] or "")}
            if match
            else text
        )
    return text


def _java_list(text: str, items: str | None) -> Any:
    if (match := _JAVA_LIST.fullmatch(text)) is not None:
        parts = match[1].split(",")
    elif (match := _JAVA_ADDED.fullmatch(text)) is not None:
        parts = _ADDED.findall(match[1])
    else:
        return [] if _JAVA_NO_ITEM.fullmatch(text) else text
    stripped = [part.strip() for part in parts]
    return [part[1:-1] if items in ("char", "String") else _java(part, items or "any") for part in stripped]


_JAVA_PLAIN = (("long", r"(-?\d+)[lL]"), ("float", _NUMBERS["java"]["float"]))


def _plain(text: str, quotes: str, suffixed: tuple = ()) -> Any:
    """Return the value of a literal whose type is not declared."""
    if text in ("true", "false"):
        return text == "true"
    if any(text.startswith(quote) and text.endswith(quote) for quote in quotes):
        return text[1:-1]
    for kind, pattern in suffixed:
        if match := re.fullmatch(pattern, text, re.ASCII):
            return int(match[1]) if kind == "long" else float(match[1])
    readers: tuple[Callable, ...] = (int, float)
    for read in readers:
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _javascript(text: str, kind: str, items: str | None = None) -> Any:
    if kind in _NUMBERS["javascript"]:
        return _number("javascript", text, kind)
    if kind == "String":
        quoted = any(text.startswith(quote) and text.endswith(quote) for quote in "'\"")
        return text[1:-1] if quoted else text
    if kind == "Boolean":
        return text == "true" if text in ("true", "false") else text
    if kind == "array":
        return _js_list(text, items)
    if kind == "dict":
        match = _JS_OBJECT.fullmatch(text.strip())
        return text if match is None else dict(map(_js_pair, _JS_PAIR.findall(match[1])))
    return text


def _js_list(text: str, items: str | None) -> Any:
    if _JS_LISTS.fullmatch(text):
        return [
            [_plain(part.strip(), "'\"") for part in row.split(",")] for row in re.findall(r"\[([^\[\]]*+)\]", text)
        ]
    match = _JS_LIST.fullmatch(text.strip())
    if match is None:
        return text
    inside = (match[1] if match[1] is not None else match[2]).strip()
    parts = [part.strip() for part in inside.split(",")] if inside else []
    return [_javascript(part, items) if items else _plain(part, "'\"") for part in parts]


def _js_pair(pair: tuple[str, str]) -> tuple[str, Any]:
    key, value = pair[0].strip().strip("'\""), pair[1].strip()
    if value.startswith("[") and value.endswith("]"):
        return key, _js_list(value, None)
    return key, _plain(value.strip("'\"").strip(), "'\"")
