"""Queries of the list: which trajectories, in which order, and what they have in common."""

from collections.abc import Callable, Mapping

import numpy as np

from retool_mcore.errors import UserError

Data = tuple[Mapping[str, np.ndarray], Mapping[str, dict]]  # columns and words of view/columns.py
DIGITS = 4
# Key of a query -> columns of words, and when a word is meant.
_MEANT: dict[str, tuple[tuple[str, ...], Callable]] = {
    "source": (("data_source",), lambda word, value: word == value),
    "problem": (("problem",), lambda word, value: word == value),
    "status": (("finish", "statuses"), lambda word, value: word == value or (type(word) is tuple and value in word)),
    "error": (("errors",), lambda word, value: value in word),
    "text": (("text",), lambda word, value: value.lower() in word.lower()),
}


def select(data: Data, query: Mapping[str, str]) -> np.ndarray:
    """Places of the trajectories that `query` asks for, in its order. Raises UserError or ValueError.

    Keys: `step`, `answer` (right or wrong), those of _MEANT, `COLUMN_min` and `COLUMN_max` of a number, and `sort`, a
    column, with - before it from the highest down; without it the newest step comes first.
    """
    columns, words = data
    kept = np.ones(len(columns["step"]), bool)
    for key, value in query.items():
        name, _, bound = key.rpartition("_")
        if key in _MEANT:
            names, meant = _MEANT[key]
            are = {own: np.array([meant(word, value) for word in words[own]], bool) for own in names}
            kept &= np.logical_or.reduce([are[own][columns[own]] for own in names])
        elif key == "step":
            kept &= columns["step"] == int(value)
        elif key == "answer":
            kept &= (columns["acc"] > 0) == (value == "right")
        elif bound in ("min", "max") and name in columns:
            kept &= columns[name] >= float(value) if bound == "min" else columns[name] <= float(value)
    rows = np.flatnonzero(kept)
    sort = query.get("sort", "-step")
    name = sort.removeprefix("-")
    if name not in columns:
        raise UserError(f"sort={sort}: there is no column {name}; it is one of {', '.join(columns)}.")
    values = columns[name][rows]
    if name in words:
        values = _ranks(words[name])[values]
    return rows[np.argsort(-values if sort.startswith("-") else values, kind="stable")]


def entries(data: Data, places: np.ndarray) -> list[dict]:
    """The trajectories at `places`, a dict of all columns each."""
    columns, words = data
    lists = {name: list(words[name]) if len(places) else [] for name in words}
    listed = []
    for place in places.tolist():
        entry = {name: values[place].item() for name, values in columns.items()}
        entry = {name: round(value, DIGITS) if value == value else None for name, value in entry.items()}
        listed.append(entry | {name: lists[name][entry[name]] for name in words})
    return listed


def by_error(data: Data, places: np.ndarray) -> list[dict]:
    """{error, trajectories, right: those of them whose answer is right} of every kind, the most frequent first."""
    columns, words = data
    codes, kinds = columns["errors"][places], words["errors"]
    counts, right = np.bincount(codes, minlength=len(kinds)), np.bincount(codes, columns["acc"][places] > 0, len(kinds))
    by_kind: dict[str, dict] = {}
    for own, code in kinds.items():
        for kind in own if counts[code] else ():
            row = by_kind.setdefault(kind, {"error": kind, "trajectories": 0, "right": 0})
            row["trajectories"] += int(counts[code])
            row["right"] += int(right[code])
    return sorted(by_kind.values(), key=lambda row: (-row["trajectories"], row["error"]))


def _ranks(words: Mapping) -> np.ndarray:
    """Place of every word among the sorted ones."""
    places = {word: place for place, word in enumerate(sorted(words))}
    return np.fromiter(map(places.__getitem__, words), np.int32, len(words))
