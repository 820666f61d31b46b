"""The checks of a row alone. Before the rewrite: text in one form, wrappers of the public data sets off, and rows
that cannot become a trace out. After it: tags balanced and in order, every program parses, one boxed answer at the end.
"""

import ast
import re
import unicodedata
import warnings

from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.data.records import MalformedRow
from retool_mcore.data.sources import prompt_problem
from retool_mcore.data.traces import extract_question, text_trace

_THINKING = re.compile(r"</?(?:think|thinking)>|<\|(?:begin|end)_of_(?:thought|solution)\|>")
_OURS = re.compile(r"</?(?:code|interpreter)>")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What OpenThoughts puts before a problem.
_ASKS_FOR_BOX = re.compile(r"\AReturn your final response within \\boxed\{\}\.\s*")
# NuminaMath marks problems without a final answer in this way.
_NO_ANSWER = {"proof", "notfound", "not found", "none", "n/a"}


def clean(text: str) -> str:
    """Unicode NFC, \\n line ends, no control characters, no outer blank space."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text).strip()


def bare_problem(text: str) -> str:
    """A problem in normal form, without what the public sets wrap around it. Raises Drop when nothing is left."""
    text = _ASKS_FOR_BOX.sub("", clean(text))
    try:
        # An answer only for the form's sake.
        wrapped = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "0"}}
        return extract_question(prompt_problem(wrapped, "", 0).question)
    except MalformedRow as error:
        raise Drop("problem is empty or no text", str(error)) from None


def normalise(row: Row) -> Row:
    """`row` in normal form. Raises Drop for one without a problem or answer, or with our own tags in it."""
    row.answer = clean(row.answer).strip("$ ")
    row.reasoning = clean(_THINKING.sub("", row.reasoning))
    if not row.answer or row.answer.casefold() in _NO_ANSWER:
        raise Drop("no final answer", row.answer)
    row.problem = bare_problem(row.problem)
    for name, text in (("problem", row.problem), ("reasoning", row.reasoning)):
        if match := _OURS.search(text):
            raise Drop("holds tool tags already", f"{match[0]} in the {name}")
    return row


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
        elif segment.kind == "text" and (match := _STRAY.search(segment.text)):
            raise Drop("program or tool call outside of <code>", match[0])
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
