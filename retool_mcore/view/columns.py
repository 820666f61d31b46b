"""The list's columns in memory: numbers as arrays, texts as the place of each among the distinct ones."""

import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow
import pyarrow.compute as compute

from retool_mcore.sandbox.base import Status

# Column of the list -> of a step file (metrics/schema.py).
NUMBERS = {name: name for name in ("step", "sample", "score", "acc", "turns", "tokens")} | {"calls": "num_calls"}
WAITS = ("generate_s", "tool_s")
WORDS = ("uid", "data_source", "finish", "statuses", "errors", "problem", "text")
CALLS = ("calls.list.element.status", "calls.list.element.stderr")
READ = (*NUMBERS.values(), *WAITS, *WORDS[:4], "index", "prompt_ids", *CALLS)
LONGEST_TEXT, LONGEST_KIND = 2000, 160
_WELL = pyarrow.array([Status.SUCCESS.value, Status.OUTPUT.value])
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+(?:\.\d+)?")
# Where a chat template may end and a problem begin: a line's end, or a special token as <|im_end|>.
_EDGE = re.compile(r"\n|<[|｜][^<>|｜\s]{1,40}[|｜]>")


class Words(dict):
    """{text: its code}; one that is new gets the next."""

    def __missing__(self, text) -> int:
        code = self[text] = len(self)
        return code


class Columns:
    """Turns step files into columns; `words` are the distinct texts of a column, over all files.

    `decode` spells token ids.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.decode = decode
        self.words = {name: Words() for name in WORDS}
        self._texts: dict[str, str] = {}  # of a problem
        self._frames: dict[str, tuple[str, str]] = {}  # of a data source

    def of(self, table: pyarrow.Table) -> dict[str, np.ndarray]:
        """{column: (trajectories,)}: float32, NaN for null, of NUMBERS, `row` and `seconds` (waited for engine and
        tools); int32 codes of WORDS: `errors`, a tuple, are the kinds of the failed calls, `text` is the problem's."""
        read = {name: table.column(name) for name in table.column_names}
        lists = {name: compute.fill_null(read[name], "").to_pylist() for name in WORDS[:3]}
        columns = {name: read[own].to_numpy().astype(np.float32) for name, own in NUMBERS.items()}
        columns["row"] = np.arange(len(table), dtype=np.float32)
        columns["seconds"] = sum(np.nan_to_num(read[own].to_numpy()) for own in WAITS).astype(np.float32)
        problems = [*map("{} #{}".format, lists["data_source"], read["index"].to_pylist())]
        self._read_texts(problems, read["prompt_ids"])
        lists["statuses"] = [tuple(own or ()) for own in read["statuses"].to_pylist()]
        lists |= {"errors": errors(read["calls"]), "problem": problems, "text": [self._texts[own] for own in problems]}
        for name, words in self.words.items():
            columns[name] = np.fromiter(map(words.__getitem__, lists[name]), np.int32, len(table))
        return columns

    def _read_texts(self, problems: Sequence[str], prompts: pyarrow.ChunkedArray) -> None:
        new = {problem: row for row, problem in enumerate(problems) if problem not in self._texts}
        ids = prompts.take(pyarrow.array(list(new.values()), pyarrow.int64())).to_pylist()
        decoded = {problem: self.decode(own or []) for problem, own in zip(new, ids, strict=True)}
        sources = {problem: problem.rpartition(" #")[0] for problem in new}
        for source in set(sources.values()) - self._frames.keys():
            same = {text for problem, text in decoded.items() if sources[problem] == source}
            if len(same) > 1:
                self._frames[source] = frame(same)
        for problem, text in decoded.items():
            begin, end = self._frames.get(sources[problem], ("", ""))
            self._texts[problem] = " ".join(text.removeprefix(begin).removesuffix(end).split())[:LONGEST_TEXT]


def frame(prompts: set[str]) -> tuple[str, str]:
    """Return how all of these begin and end: chat template and instructions, as far as lines or special tokens go."""
    begin = os.path.commonprefix(list(prompts))
    begin = begin[: max((edge.end() for edge in _EDGE.finditer(begin)), default=0)]
    end = os.path.commonprefix([prompt[len(begin) :][::-1] for prompt in prompts])[::-1]
    edge = _EDGE.search(end)
    return begin, end[edge.start() :] if edge else ""


def errors(calls: pyarrow.ChunkedArray) -> list[tuple[str, ...]]:
    """The kinds of the failed calls of every trajectory, each once, in order; calls: structs of status and stderr."""
    kinds: list[tuple[str, ...]] = [()] * len(calls)
    each, rows = compute.list_flatten(calls), compute.list_parent_indices(calls)
    failed = compute.invert(compute.is_in(compute.struct_field(each, "status"), _WELL))
    for row, call in zip(rows.filter(failed).to_pylist(), each.filter(failed).to_pylist(), strict=True):
        kind = error_kind(call["status"] or "", call["stderr"] or "")
        if kind not in kinds[row]:
            kinds[row] = (*kinds[row], kind)
    return kinds


def error_kind(status: str, stderr: str) -> str:
    """Return what calls that failed alike have in common: the last line of the error, without numbers and quoted texts.

    For a call that ran into a limit it is the status alone, as the line says nothing but the limit.
    """
    if status not in (Status.ERROR, "malformed"):
        return status
    line = stderr[-4096:].rstrip().rpartition("\n")[2].strip()
    return f"{status}: {_VARIABLE.sub('…', line)}"[:LONGEST_KIND] if line else status
