"""Convert what a policy wrote to what runs: fences off, and a final bare expression displayed as a notebook does.

The rewrite works on the syntax tree. Printing "the last line" instead breaks assignments, indented lines, lines that
end a bracket and lines that print already.
"""

import ast
import re

FILENAME = "<code>"
# Longer programs are not parsed by the process that sends them: the parser holds the interpreter until it is done.
MAX_PARSED_CHARS = 50_000
_FENCE = re.compile(r"\s*+```[\w+.-]*+[ \t]*+\r?\n")


def strip_fences(code: str) -> str:
    """The program inside one ```python ... ``` block, or `code` itself when it is not fenced; no byte order mark."""
    code = code.removeprefix("\ufeff")
    fence, body = _FENCE.match(code), code.rstrip()
    if not fence or not body.endswith("```") or len(body) < fence.end() + len("```"):
        return code
    return body[fence.end() :].removesuffix("```").rstrip(" \t").removesuffix("\n").removesuffix("\r")


def final_expression(tree: ast.Module, code: str) -> ast.Expr | None:
    """The statement whose value is displayed: the last at top level, if a bare expression without a `;` after it."""
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return None
    last = tree.body[-1]
    # Only these three end a line for the parser; str.splitlines knows more and would miscount.
    line = re.split(r"\r\n|\r|\n", code)[last.end_lineno - 1].encode()
    silenced = line[last.end_col_offset :].lstrip().startswith(b";")
    return None if silenced else last


def displayed(code: str, function: str) -> ast.Module:
    """The tree of `code` in which the final expression is passed to `function`, which must be a name in its globals.

    Raises what the parser raises (SyntaxError with the line, ValueError, RecursionError, MemoryError).
    """
    tree = ast.parse(code, FILENAME)
    last = final_expression(tree, code)
    if last is not None:
        call = ast.Call(func=ast.Name(function, ast.Load()), args=[last.value], keywords=[])
        # The call takes the expression's own place, so that tracebacks show the same line as before.
        last.value = ast.copy_location(call, last.value)
        ast.fix_missing_locations(tree)
    return tree
