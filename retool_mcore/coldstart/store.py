"""A stage's finished rows on disk: one JSON line each, appended, so that a kill at any moment costs the last batch.

The first line names the work (a fingerprint of the stage's settings and of all stages before it), the last says that
the stage ended. A file of other work is begun anew; a line that a kill cut short is taken off.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
