"""Blocks in a policy's text: programs, calls, imitated outputs, and the prose around them.

A text may also name a tag: in prose ("the <code> above printed 42"), in a string of a program or of a call's JSON, or
in a program's comment. What only names a tag neither opens nor closes a block.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

CODE, CODE_END = "<code>", "</code>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
_OUTPUT = "interpreter|tool_response"  # what only the interpreter may write
_JSON = re.compile(r"\s*+[{\[]")

_FENCED = re.compile(r"<code>\s*+```(?:python|py)?[ \t]*+\n")
_FENCE_CLOSED = re.compile(r"```\s*+</code>")
# A string that is never closed goes on to the end of the text or, in single quotes, of its line. Atomic groups, because
# Python before 3.11.5 repeats a possessive group wrongly (cpython#106052).
_STRING = (
    r"\"\"\"(?>(?:\\.|(?!\"\"\").)*)(?:\"\"\"|\Z)|'''(?>(?:\\.|(?!''').)*)(?:'''|\Z)"
    r"|\"(?>(?:\\.|[^\"\\\n])*)(?:\"|\Z|(?=\n))|'(?>(?:\\.|[^'\\\n])*)(?:'|\Z|(?=\n))"
)
_BARE_END = re.compile(rf"{_STRING}|(?P<end></code>)", re.DOTALL)
_FENCED_END = re.compile(rf"{_STRING}|#[^\n]*+|(?P<end></code>)", re.DOTALL)

_CLOSED_OUTPUT = re.compile(rf"<(?P<name>{_OUTPUT})>(?:(?!<(?P=name)>).)*?</(?P=name)>", re.DOTALL)
_TAG = re.compile(rf"<(?P<name>code|tool_call|{_OUTPUT})>")
# A block begins right behind its tag; in prose a space, a mark or a plural's s follows.
_ATTACHED = re.compile(r"(?!s\b)[^\s.,:;!?'\"`)\]/-]")
_PYTHON_LINE = re.compile(
    r"\s*+(?:```|[#@]|import\s+[\w.]+\s*(?:,|;|as\b|$)|from\s+[\w.]+\s+import\b|(?:def|class)\s+\w+\s*[(:]"
    r"|(?:for|while|if|with)\b.*:\s*$|(?:try)\s*:|[\w.]+(?:\s*,\s*[\w.]+)*\s*[-+*/%|&]?=(?!=)|[\w.]+\()",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One block of a text, from its opening tag at `start` to `end`, behind its closing tag; `body` stands between.

    `closed` is False for a block without a closing tag, whose `body` goes on to `end`.
    """

    start: int
    end: int
    body: str
    closed: bool = True


def call_blocks(text: str) -> Iterator[Block]:
    """Yield the `<tool_call>` blocks of `text` in order. A closing tag inside a JSON string closes none.

    A tag without a closing one, before the next call or the end, is a block only when a call begins behind it.
    """
    start, end = text.find(CALL), text.find(CALL_END)
    while start >= 0:
        body = start + len(CALL)
        behind = _json_end(text, body)
        # Looked for once a closing tag, not once an opening one: a policy may write thousands that nothing closes.
        end = text.find(CALL_END, behind) if 0 <= end < behind else end
        following = text.find(CALL, behind)
        if end >= 0 and not 0 <= following < end:
            yield Block(start, end + len(CALL_END), text[body:end])
            following = text.find(CALL, end)
        elif _opens("tool_call", text, start, body):
            stop = len(text) if following < 0 else following
            yield Block(start, stop, text[body:stop], closed=False)
        start = following


def _json_end(text: str, start: int) -> int:
    """Return where the JSON objects and lists end that follow each other from `start` on; `start` without any."""
    decoder, end = json.JSONDecoder(), start
    while (begins := _JSON.match(text, end)) is not None:
        try:
            end = decoder.raw_decode(text, begins.end() - 1)[1]
        except (ValueError, RecursionError):
            break
    return end


def code_block(text: str) -> Block | None:
    """Return the first program of `text` between `<code>` and `</code>`; None without a closed one.

    It opens at the first tag with a fence behind it, else at the last tag before the end: prose may name the tag. A
    fenced program ends behind its closing fence, or at a tag outside of its strings and comments. A closing tag that
    no opening one precedes is a block that is not `closed`.
    """
    first = text.find(CODE_END)
    if first < 0:
        return None
    fenced = _FENCED.search(text, 0, first)
    start = fenced.start() if fenced else text.rfind(CODE, 0, first)
    if start < 0:
        return Block(first, first + len(CODE_END), "", closed=False)
    body = start + len(CODE)
    if fenced is None:
        # Without a fence a comment may end in the closing tag, and a quote that is left open proves nothing.
        end = next((tag.start() for tag in _BARE_END.finditer(text, body) if tag["end"]), first)
    else:
        behind = _FENCE_CLOSED.search(text, fenced.end())
        outside = next((tag for tag in _FENCED_END.finditer(text, fenced.end()) if tag["end"]), None)
        ends = [match.end() for match in (behind, outside) if match]
        if not ends:
            return None
        end = min(ends) - len(CODE_END)
    return Block(start, end + len(CODE_END), text[body:end])


def unfenced(body: str) -> str:
    """Return the program that a block's `body` holds, without the fence around it."""
    # Linear in the body's length, unlike a regular expression, because a policy may write thousands of spaces.
    fence, _, rest = body.lstrip().partition("\n")
    rest = rest.rstrip()
    if fence.rstrip() in ("```", "```python", "```py") and rest.endswith("```"):
        return rest.removesuffix("```").rstrip(" \t").removesuffix("\n")
    return body.strip()


def open_program(text: str) -> bool:
    """Return whether all closing tags of `text` stand in strings or comments of a program that goes on."""
    return CODE_END in text and code_block(text) is None


def prose(text: str) -> str:
    """Return a policy turn's text without programs, calls, and blocks that imitate an interpreter's output.

    A block that is never closed reaches to the end: half a program is not an answer either.
    """
    kept, position = "", 0
    for block in call_blocks(text):
        kept, position = kept + text[position : block.start], block.end
    text, kept = kept + text[position:], ""
    while (code := code_block(text)) is not None:
        kept, text = kept + text[: code.start if code.closed else code.end], text[code.end :]
    text = _CLOSED_OUTPUT.sub("", kept + text)
    for tag in _TAG.finditer(text):
        if tag["name"] != "tool_call" and _opens(tag["name"], text, tag.start(), tag.end()):
            return text[: tag.start()]
    return text


def _opens(name: str, text: str, start: int, end: int) -> bool:
    """Return whether the tag `name` from `start` to `end`, which nothing closes, opens a block or is only named."""
    if _ATTACHED.match(text, end):
        return True
    if name == "code":
        return _PYTHON_LINE.match(text, end) is not None
    if name == "tool_call" and _JSON.match(text, end):
        return True
    begins_line = not text[text.rfind("\n", 0, start) + 1 : start].strip()
    return begins_line and text[end : end + 1] == "\n"
