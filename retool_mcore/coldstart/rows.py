"""What travels through the stages, and what becomes of it."""

import hashlib
import json
from dataclasses import dataclass, field

from retool_mcore.data.records import Segment


@dataclass
class Row:
    """One problem with its reasoning on the way to a trace. A stage fills in its own fields and leaves the others.

    `key` is a hash of the row's number and its content; `index` counts from 0 over the source's files; `judge_share`
    is the share of the judge's answers that are right; `rewrite` the model's text as it came; `segments` that text
    parsed, from the execution stage on with the sandbox's output; `claimed` the outputs that the model had written
    there; `tokens` prompt and response in the format `text`.
    """

    key: str
    index: int
    problem: str
    reasoning: str
    answer: str
    difficulty: float | None = None
    judge_share: float | None = None
    rewrite: str | None = None
    segments: list[dict] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    repaired: int = 0
    failed_programs: int = 0
    tokens: int = 0

    def trace_segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(**segment) for segment in self.segments)

    def prose(self) -> str:
        """The text segments alone: no program and no output."""
        return "\n".join(segment["text"] for segment in self.segments if segment["kind"] == "text")


@dataclass(frozen=True)
class Outcome:
    """What a stage made of one row: `row`, or None with the reason.

    `reason` is one of few phrases, to be counted; `detail` is about this row.
    """

    key: str
    index: int
    row: Row | None
    reason: str = ""
    detail: str = ""


class Drop(Exception):
    """Raised by a stage for a row that goes no further."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def content_key(*parts: object) -> str:
    """24 hexadecimal digits that stand for `parts` (anything JSON knows)."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
