"""Causes in the data: few distinct problems, and problems that are in training and validation."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow
from pyarrow import parquet

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import Prepared, two

MOST = 400_000  # rows read of each role
FILES = {
    "rl": ("data.train_files", ("data.held_back_files", "data.validation_files"), "prompt"),
    "sft": ("data.sft_train_files", ("data.sft_validation_files",), "messages"),
}


def leaked(p: Prepared) -> Finding | None:
    """Problems of the validation are among those trained on."""
    train, validation, column = FILES[p.stage]
    known = set(_texts(p, train, column))
    for key in validation if known else ():
        texts = _texts(p, key, column)
        both = [text for text in texts if text in known]
        if len(both) >= max(1, 0.01 * len(texts)):
            what = (
                f"{len(both)} of {len(texts)} problems of {key} are among the {len(known)} of {train}, as "
                f"{both[0][:60]!r}: what is measured there is memory"
            )
            how = "other problems; `retool prepare` splits so that none is in both"
            return Finding("problems leaked", 0.83, what, key, how, (), ("hacking",), stage=p.stage)
    return None


def duplicated(p: Prepared) -> Finding | None:
    """The problems repeat each other."""
    train, _, column = FILES[p.stage]
    texts = _texts(p, train, column)
    if len(texts) < 16 or len(set(texts)) > 0.5 * len(texts):
        return None
    text, count = Counter(texts).most_common(1)[0]
    what = f"{train} has {len(texts)} rows of {len(set(texts))} problems; {text[:60]!r} is there {count} times"
    how = "keep one row of each problem: `retool prepare` does"
    looks = two(p.late_rows, lambda row: True)
    return Finding("problems duplicated", 0.78, what, train, how, looks, stage=p.stage)


def _texts(p: Prepared, key: str, column: str) -> list[str]:
    """The question of each row of the files that `key` names, spaces apart; [] where they are not there."""
    named = p.key(key) or ()
    texts: list[str] = []
    for path in [named] if isinstance(named, str) else named:
        if len(texts) < MOST and Path(path).is_file():
            try:
                rows = parquet.read_table(path, columns=[column]).slice(0, MOST).column(column).to_pylist()
            except (pyarrow.ArrowException, OSError, KeyError):
                continue
            texts += [_question(messages) for messages in rows]
    return [text for text in texts if text]


def _question(messages: Sequence | None) -> str:
    users: Iterable[str] = (
        str(own.get("content") or "") for own in messages or () if isinstance(own, dict) and own.get("role") == "user"
    )
    return re.sub(r"\s+", " ", next(iter(users), "")).strip()
