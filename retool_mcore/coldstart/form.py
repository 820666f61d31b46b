"""The format check: tags balanced and in order, every program parses, one boxed answer at the end."""

import ast
import re
import warnings

from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.data.records import MalformedRow
from retool_mcore.data.traces import text_trace

_STRAY = re.compile(r"```\s*(?:python|py|output)\b|<(?:tool_call|tool_response|\|im_)", re.IGNORECASE)
_NO_TEXT = "text is not UTF-8"


def check_form(row: Row) -> Row:
    """Parses `rewrite` into `segments` and notes the outputs it claims. Raises Drop with what is wrong."""
    text = row.rewrite or ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Drop(_NO_TEXT, str(error)) from None
    # The parser of the published data set, whose form the instruction asks for.
    messages = [{"role": "user", "content": f"*user question:*\n{row.problem}"}, {"role": "assistant", "content": text}]
    try:
        trace = text_trace({"messages": messages}, "", row.index)
    except MalformedRow as error:
        reason = str(error).partition(":")[0]
        known = ("unbalanced tags", "code without observation", "observation without code", "missing final answer")
        raise Drop(reason if reason in known else "malformed rewrite", str(error)) from None
    for segment in trace.segments:
        if segment.kind == "code":
            _check_parses(segment.text)
        elif segment.kind == "text" and (found := _STRAY.search(segment.text)):
            raise Drop("program or tool call outside of <code>", found[0])
    row.segments = [{"kind": segment.kind, "text": segment.text} for segment in trace.segments]
    row.claimed = [segment.text for segment in trace.segments if segment.kind == "observation"]
    return row


def _check_parses(code: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        raise Drop("program does not parse", f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Drop("program does not parse", type(error).__name__) from None
