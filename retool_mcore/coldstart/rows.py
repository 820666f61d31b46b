"""Rows that travel through the stages, and their outcomes. On disk a row is one JSON line, appended: a kill at any
moment costs the last batch.

The first line of a stage's file names the work (a fingerprint of the stage's settings and of all stages before it); the
last says that the stage ended. A file of other work is started anew; a line that a kill cut short is removed.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    """The outcome of a stage for one row: `row`, or None with the reason.

    `reason` is one of a few phrases that are counted; `detail` is about this row.
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


BATCH_ROWS = 64
BATCH_S = 1.0
_DETAIL_CHARS = 500


class Store:
    """The outcomes of one stage. `done` holds the keys that need no more work; `ended` says that none is missing.

    resume: whether the rows of an unfinished file count; a stage that must see all rows at once begins anew.
    """

    def __init__(self, path: Path, fingerprint: str, *, resume: bool = True):
        self.path = path
        self._begin()
        end = self._read(fingerprint)
        if self.ended:
            return
        if not resume or not end:
            end = 0
            self._begin()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._line({"fingerprint": fingerprint})
        self.sync()

    def _begin(self) -> None:
        self.done: set[str] = set()
        self.ended, self.kept, self._file = False, 0, None
        self.drops: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """Rows that came in so far."""
        return self.kept + sum(self.drops.values())

    def add(self, outcome: Outcome) -> None:
        """Note an outcome; it is on the disk after `BATCH_ROWS` more, after `BATCH_S`, or after `sync`."""
        record: dict[str, Any] = {"key": outcome.key}
        if outcome.row is not None:
            record["row"] = asdict(outcome.row)
        else:
            record |= {"index": outcome.index, "drop": outcome.reason, "detail": outcome.detail[:_DETAIL_CHARS]}
        self._line(record)
        self._pending += 1
        if self._pending >= BATCH_ROWS or time.monotonic() - self._written_at > BATCH_S:
            self.sync()

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._pending, self._written_at = 0, time.monotonic()

    def end(self) -> None:
        """Every row has its outcome."""
        self._line({"ended": True})
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def kept_rows(self) -> Iterator[Row]:
        """The rows that go on, in the file's order. Only once ended."""
        return (Row(**record["row"]) for record in self._records() if "row" in record)

    def dropped(self) -> Iterator[dict]:
        """{key, index, drop, detail} of every row that does not."""
        return (record for record in self._records() if "drop" in record)

    def _records(self) -> Iterator[dict]:
        with self.path.open("rb") as file:
            yield from map(json.loads, file)

    def _line(self, record: dict) -> None:
        # ASCII, because half of a surrogate pair in a model's reply has no UTF-8.
        self._file.write(json.dumps(record).encode() + b"\n")
        self._count(record)

    def _count(self, record: dict) -> None:
        if "key" in record:
            self.done.add(record["key"])
        self.kept += "row" in record
        self.drops.update([record["drop"]] if "drop" in record else [])
        self.ended = "ended" in record

    def _read(self, fingerprint: str) -> int:
        """Take in what is there; returns the length of its whole lines, 0 when the file is of other work."""
        end = 0
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    record = None
                if record is None or (end == 0 and record.get("fingerprint") != fingerprint):
                    break
                end += len(line)
                self._count(record)
        return end
