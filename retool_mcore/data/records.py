"""The outcomes of a data set's row: a problem (RL), a trace (SFT) or a reported reason why it is neither.

Every loader returns these records, which keeps the parquet schema independent of the public data sets' many shapes.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import field as attribute
from typing import Any, Literal

from retool_mcore.errors import UserError


@dataclass(frozen=True)
class Problem:
    """A question and its answer. `index` is the row it came from, counted from 0 over all files of the source; `extra`
    the row's other columns that a reward may read, by name, in values that JSON can hold."""

    data_source: str
    question: str
    answer: str
    index: int
    extra: Mapping[str, Any] = attribute(default_factory=dict, kw_only=True, hash=False)

    @property
    def key(self) -> str:
        """Equal for two rows that are the same problem."""
        return normalise_question(self.question)


@dataclass(frozen=True)
class CallProblem(Problem):
    """A conversation that the policy must answer with function calls.

    `messages` are (role, content); `question` is the first of the user's, since all turns of one conversation belong
    on the same side of a split. `answer` is the calls as a JSON list of {name, arguments}, keys sorted; `tools` a JSON
    list of OpenAI function schemas; `replies` a JSON list of {name, arguments, reply}, what the data set recorded.
    `answer` may also list accepted values, or no call (rewards/call_truth.py). Rows that differ in `identity` are no
    duplicates.
    """

    messages: tuple[tuple[str, str], ...]
    tools: str
    replies: str = "[]"
    identity: str = ""

    @property
    def key(self) -> str:
        return normalise_question(json.dumps([self.messages, self.tools, self.identity], ensure_ascii=False))


@dataclass(frozen=True)
class Segment:
    """A stretch of a trace. "code" is the bare program and "observation" the bare output: no tags, no fences."""

    kind: Literal["text", "code", "observation"]
    text: str


@dataclass(frozen=True)
class Trace:
    """A worked solution with code. Each code segment is followed by its observation; the last segment is text.

    `tools` is a JSON list of function schemas that the last text may call, "" for none of its own. `messages` are
    (role, content) of the conversation that the segments go on with; () where that is the question alone.
    """

    data_source: str
    question: str
    segments: tuple[Segment, ...]
    index: int
    tools: str = ""
    messages: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple:
        return normalise_question(self.question), self.messages, self.tools, self.segments


@dataclass(frozen=True)
class Malformed:
    """A row that was left out, and why. `row` counts from 0 over all files of the source; `text` is how it begins."""

    row: int
    reason: str
    text: str = attribute(default="", compare=False)


class MalformedRow(Exception):
    """Raised by a row parser with the reason; the loader turns it into a `Malformed` and goes on."""

    where = ""  # FILE:LINE, of a row that cannot be read at all


def text_field(value: Any, name: str) -> str:
    """`value` if it is text, with line ends unified to \\n; raises MalformedRow naming the field and its type."""
    if value is None:
        raise MalformedRow(f"{name} is null")
    if not isinstance(value, str):
        raise MalformedRow(f"{name} is {type(value).__name__}, expected text")
    return value.replace("\r\n", "\n").replace("\r", "\n")


def check_text(value: Any, name: str = "the row") -> None:
    """Raises MalformedRow for a text in a record that no file can hold (half of a surrogate pair) or no text should: a
    NUL character."""
    if isinstance(value, str):
        if "\0" in value:
            raise MalformedRow(f"a NUL character in {name}")
        if not value.isascii() and (half := _HALF.search(value)):
            byte = ord(half[0]) - 0xDC00
            if 0x80 <= byte <= 0xFF:  # of a reader's surrogateescape
                raise MalformedRow(f"not UTF-8: the byte {byte:#x} in {name}")
            raise MalformedRow(f"half of a surrogate pair in {name}, as of an emoji that was cut: {half[0]!a}")
    elif isinstance(value, list | tuple):
        for item in value:
            check_text(item, name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_text(key, name)
            check_text(item, name)
    elif is_dataclass(value):
        for part in fields(value):
            check_text(getattr(value, part.name), name if part.name == "text" else f"the {part.name}")


_HALF = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with what no file can hold as an escape."""
    return text.encode(errors="backslashreplace").decode()


def source_name(row: Any, path: str) -> str:
    """The data source that a row names at a dotted path, as metrics write it: what is no letter, digit, `.`, `_` or `-`
    becomes `_`. Raises MalformedRow where there is none."""
    value = at(row, path)
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else text_field(value, path)
    name = re.sub(r"[^\w.-]+", "_", text.strip()).strip("_")
    if not name:
        raise MalformedRow(f"{path} is empty")
    return name


def field(row: Any, key: str, where: str) -> Any:
    """`row[key]`; raises MalformedRow, naming `where`, when `row` is no mapping or lacks the key."""
    if not isinstance(row, dict):
        raise MalformedRow(f"{where} is {type(row).__name__ if row is not None else 'null'}, expected an object")
    if key not in row:
        raise MalformedRow(f"{where} has no field {key!r}")
    return row[key]


def at(row: Any, path: str) -> Any:
    """The value at a dotted path: a column of that very name, or names and list indices one below the other.

    Raises MalformedRow when it leads nowhere.
    """
    if isinstance(row, dict) and path in row:
        return row[path]
    value = row
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            there = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise MalformedRow(f"{path!r} leads nowhere; the row has {there}") from None
    return value


def draw_distinct(n: int, draws: int, draw: Callable, key: Callable, refusal: str) -> list:
    """`n` of what `draw(index)` returns that differ in `key`, None passed over. Raises UserError, `refusal`, when
    n * draws draws hold no `n`."""
    distinct: dict = {}
    for _ in range(draws * n):
        if len(distinct) == n:
            break
        if (made := draw(len(distinct))) is not None:
            distinct.setdefault(key(made), made)
    if len(distinct) < n:
        raise UserError(refusal)
    return list(distinct.values())


def normalise_question(question: str) -> str:
    """The form in which two questions count as one problem: Unicode NFC, case folded, whitespace collapsed.

    NFC and not NFKC, because the latter turns x² into x2.
    """
    return " ".join(unicodedata.normalize("NFC", question).casefold().split())
