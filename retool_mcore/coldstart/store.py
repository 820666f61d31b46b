"""A stage's finished rows on disk: one JSON line each, appended, so that a kill at any moment costs the last batch.

The first line names the work (a fingerprint of the stage's settings and of all stages before it), the last says that
the stage ended. A file of other work is begun anew; a line that a kill cut short is taken off.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from retool_mcore.coldstart.rows import Outcome, Row

BATCH_ROWS = 64
BATCH_S = 1.0
_DETAIL_CHARS = 500


class Store:
    """The outcomes of one stage. `done` holds the keys that need no more work; `ended` says that none is missing.

    resume: whether the rows of an unfinished file count; a stage that must see all rows at once begins anew.
    """

    def __init__(self, path: Path, fingerprint: str, *, resume: bool = True):
        self.path = path
        self.done: set[str] = set()
        self.ended = False
        self.kept = 0
        self.drops: Counter[str] = Counter()
        end = self._read(fingerprint)
        if not self.ended and not resume:
            end = 0
            self.done, self.kept, self.drops = set(), 0, Counter()
        if self.ended:
            self._file = None
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(end)
        self._file.seek(end)
        self._pending, self._written_at = 0, time.monotonic()
        if not end:
            self._line({"fingerprint": fingerprint})
            self.sync()

    @property
    def rows(self) -> int:
        """Rows that came in so far."""
        return self.kept + sum(self.drops.values())

    def add(self, outcome: Outcome) -> None:
        """Note an outcome; it is on the disk after `BATCH_ROWS` more, after `BATCH_S`, or after `sync`."""
        if outcome.row is not None:
            self._line({"key": outcome.key, "row": outcome.row.to_json()})
        else:
            detail = outcome.detail[:_DETAIL_CHARS]
            self._line({"key": outcome.key, "index": outcome.index, "drop": outcome.reason, "detail": detail})
        self._count(outcome.key, outcome.row is not None, outcome.reason)
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
        self.ended = True
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def kept_rows(self) -> Iterator[Row]:
        """The rows that go on, in the file's order. Only once ended."""
        for record in self._records():
            if "row" in record:
                yield Row.from_json(record["row"])

    def dropped(self) -> Iterator[dict]:
        """{key, index, drop, detail} of every row that does not."""
        for record in self._records():
            if "drop" in record:
                yield record

    def _records(self) -> Iterator[dict]:
        with self.path.open("rb") as file:
            for line in file:
                yield json.loads(line)

    def _count(self, key: str, kept: bool, reason: str) -> None:
        self.done.add(key)
        self.kept += kept
        if not kept:
            self.drops[reason] += 1

    def _line(self, record: dict) -> None:
        # ASCII, because half of a surrogate pair in a model's reply has no UTF-8.
        self._file.write(json.dumps(record).encode() + b"\n")

    def _read(self, fingerprint: str) -> int:
        """Take in what is there; returns the length of its whole lines, 0 when the file is of other work."""
        if not self.path.exists():
            return 0
        end = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    record = None
                if record is None or (number == 0 and record.get("fingerprint") != fingerprint):
                    break
                end += len(line)
                if "key" in record:
                    self._count(record["key"], "row" in record, record.get("drop", ""))
                self.ended = "ended" in record
        return end
