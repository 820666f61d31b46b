"""How the pages write defaults and the translation to verl."""

import ast
import inspect
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from io import StringIO
from types import FunctionType
from typing import Any

from retool_mcore.config import to_verl
from retool_mcore.config.defaults import REQUIRED, Default
from retool_mcore.config.keys import UNSET


def shown(value: Any) -> str:
    """A default as a user would write it."""
    if value is UNSET or value == REQUIRED:
        return ""
    if isinstance(value, Default):
        text = value.text
    else:
        text = json.dumps(value) if value is None or isinstance(value, bool | dict | list) else str(value)
    return f"`{text}`".replace("|", "\\|")


def translation(stage: str) -> Iterator[tuple[str, str, str]]:
    """(key of verl, expression of our keys, comment) of what to_verl.py sets for a stage."""
    yield from _entries(getattr(to_verl, stage), "")


def _entries(function: FunctionType, prefix: str) -> Iterator[tuple[str, str, str]]:
    source = textwrap.dedent(inspect.getsource(function))
    (returned,) = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Return)]
    comments = {
        token.start[0]: token.string.removeprefix("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()

    def comment(line: int) -> str:
        above = comments.get(line - 1, "") if lines[line - 2].lstrip().startswith("#") else ""
        return comments.get(line, above)

    def entries(node: ast.Dict, prefix: str, around: str) -> Iterator[tuple[str, str, str]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # **common(c)
                yield from _entries(getattr(to_verl, ast.unparse(value.func)), prefix)  # type: ignore[attr-defined]
                continue
            name, why = f"{prefix}{key.value}", comment(key.lineno) or around  # type: ignore[attr-defined]
            if isinstance(value, ast.Dict):
                yield from entries(value, f"{name}.", why)
            else:
                yield name, _expression(value), why

    yield from entries(returned, prefix, "")


def _expression(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        value = node.value
        return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return re.sub(r"\bc\.", "", ast.unparse(node)).replace(".model_dump()", "").replace("lambda_", "lambda")
