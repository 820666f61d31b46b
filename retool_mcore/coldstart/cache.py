"""Finished model calls on disk, by their request: none is lost to a stop, and none is made twice."""

import json
import sqlite3
from pathlib import Path

_TABLE = """CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, purpose TEXT, text TEXT, finish TEXT,
    retries INTEGER, tokens_in INTEGER, tokens_out INTEGER, cost REAL)"""


class CallCache:
    """Replies by request key. A reply is on the disk when `put` returns."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(_TABLE)

    def get(self, key: str) -> tuple[str, str] | None:
        """(text, finish reason), None for a request that has no reply."""
        found = self._db.execute("SELECT text, finish FROM calls WHERE key = ?", (key,)).fetchone()
        return None if found is None else (json.loads(found[0]), found[1])

    def put(
        self,
        key: str,
        purpose: str,
        text: str,
        finish: str,
        retries: int,
        tokens_in: int,
        tokens_out: int,
        cost: float,
    ) -> None:
        row = (key, purpose, json.dumps(text), finish, retries, tokens_in, tokens_out, cost)
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def totals(self) -> dict[str, dict]:
        """{purpose: {calls, retries, tokens_in, tokens_out, cost}} of every call ever paid for."""
        sums = ("retries", "tokens_in", "tokens_out", "cost")
        query = f"SELECT purpose, COUNT(*), {', '.join(f'SUM({name})' for name in sums)} FROM calls GROUP BY purpose"
        return {purpose: dict(zip(("calls", *sums), found, strict=True)) for purpose, *found in self._db.execute(query)}

    def close(self) -> None:
        self._db.close()
