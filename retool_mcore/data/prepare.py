"""Convert a public data set to our parquet: the work of `retool prepare`.

Nothing vanishes: every source row is written, counted as a duplicate, or listed in report.json with the reason.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from retool_mcore.data.function_calls import ABILITY, NO_CALL
from retool_mcore.data.held_back import split_by_problem
from retool_mcore.data.kept import COLUMN, kept_json
from retool_mcore.data.prompts import get_template, render, render_conversation
from retool_mcore.data.records import CallProblem, Malformed, Problem, Trace
from retool_mcore.data.schema import RL_SCHEMA, SFT_SCHEMA, rl_row, write_rows
from retool_mcore.data.sources import Source, get_source, left_out, load
from retool_mcore.data.traces import without_answer_tags
from retool_mcore.data.untrusted import json_or_none, same_json
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

_SHOWN_REASONS = 5
_SHOWN_SOURCES = 20


@dataclass(frozen=True)
class Report:
    """The outcome of the rows: rows == kept + duplicates + len(malformed). `files`: rows of each file written;
    `sources`: rows kept of each data source; `unanswered`: rows kept that have no answer; `left_out`: lines on files
    that were not read; `no_call`: rows kept whose right answer is no call."""

    source: str
    rows: int
    kept: int
    duplicates: int
    malformed: tuple[Malformed, ...]
    files: dict[Path, int]
    path: Path
    sources: dict[str, int]
    unanswered: int = 0
    left_out: tuple[str, ...] = ()
    no_call: int = 0

    def lines(self) -> list[str]:
        """Three to eight lines for the terminal."""
        counts = f"{self.kept} kept, {self.duplicates} duplicates, {len(self.malformed)} malformed"
        lines = [f"{self.source}: {self.rows} rows read: {counts}"]
        lines += [f"  {path}: {rows} rows" for path, rows in self.files.items()]
        if len(self.sources) > 1:
            most = ", ".join(f"{name} {rows}" for name, rows in Counter(self.sources).most_common(_SHOWN_SOURCES))
            more = len(self.sources) - _SHOWN_SOURCES
            lines.append(f"  {len(self.sources)} data sources: {most}" + (f" and {more} more" if more > 0 else ""))
        if self.unanswered:
            lines.append(f"  {self.unanswered} rows have no answer: their reward alone says what is right")
        for reason, times in Counter(malformed.reason for malformed in self.malformed).most_common(_SHOWN_REASONS):
            first = next(malformed for malformed in self.malformed if malformed.reason == reason)
            lines.append(f"  malformed {times} x: {reason}; first row {first.row}: {first.text}".removesuffix(": "))
        if self.no_call:
            lines.append(f"  {self.no_call} rows whose right answer is no call")
        lines += [f"  {line}" for line in self.left_out]
        return [*lines, f"  report: {self.path}"]


def prepare_rl(
    source_name: str | Source, output_dir: str | Path, *, location: str | Path | None = None, template: str = "retool"
) -> Report:
    """Write an RL or evaluation source as {train,test}.parquet and report.json: one output_dir a source.

    A question that occurs again with the same answer is a duplicate. With another answer both rows are malformed, the
    first one too: nothing says which is right. Raises UserError as `load` does, and when no row is left.
    """
    source = _source(source_name, "rl", template)
    problems, again, malformed = _read(source, location)
    disputed = [other for other in again if not _same_answer(problems[other.key].answer, other.answer)]
    malformed += [_dispute(other, problems[other.key]) for other in disputed]
    first_disputes = {other.key: other for other in reversed(disputed)}
    malformed += [_dispute(problems.pop(key), other) for key, other in first_disputes.items()]
    splits: dict[str, list] = {source.split: list(problems.values())}
    left = left_out(str(location or source.hub_name))
    return _write(source_name, source, splits, len(again) - len(disputed), malformed, Path(output_dir), template, left)


def prepare_sft(
    source_name: str | Source,
    output_dir: str | Path,
    *,
    location: str | Path | None = None,
    template: str = "retool",
    validation_fraction: float = 0.05,
    seed: int = 0,
) -> Report:
    """Write an SFT source as {train,validation}.parquet and report.json: one output_dir a source.

    Only a trace that repeats question and segments is a duplicate: several solutions of one problem are kept, on the
    same side of the split. Raises UserError as `load` and `split_by_problem` do, and when no row is left.
    """
    source = _source(source_name, "sft", template)
    traces, again, malformed = _read(source, location)
    splits: dict[str, list] = {source.split: list(traces.values())}
    if traces and validation_fraction:
        train, validation = split_by_problem(splits[source.split], validation_fraction, seed)
        splits = {"train": train, "validation": validation}
    return _write(source_name, source, splits, len(again), malformed, Path(output_dir), template)


def write_problems(problems: Iterable[Problem], path: Path, *, template: str, split: str) -> None:
    """Write problems, all with tools of their own or all without, as an RL/eval parquet, whole or not at all."""
    write_rows((_rl_row(problem, template, split) for problem in problems), RL_SCHEMA, path)


def write_traces(traces: Iterable[Trace], path: Path, *, template: str, split: str) -> None:
    """Write traces as an SFT parquet, with <answer> tags only where the template asks for them; whole or not at all."""
    write_rows((_sft_row(trace, template, split) for trace in traces), SFT_SCHEMA, path)


def _source(name: str | Source, purpose: str, template: str) -> Source:
    """The source, after everything has been checked that can be before a row is read."""
    source = get_source(name) if isinstance(name, str) else name
    get_template(template)
    if source.purpose != purpose:
        raise UserError(f"{name} is a data set for {source.purpose}, not for {purpose}.")
    return source


def _read(source: Source, location: str | Path | None) -> tuple[dict, list, list[Malformed]]:
    """The first record of each key, those that come again, and the malformed rows."""
    first: dict = {}
    again, malformed = [], []
    # disable=None: no bar where nobody watches.
    for record in tqdm(load(source, location), desc=source.data_source, unit=" rows", disable=None):
        if isinstance(record, Malformed):
            malformed.append(record)
        elif first.setdefault(record.key, record) is not record:
            again.append(record)
    return first, again, malformed


def _same_answer(a: str, b: str) -> bool:
    if a == b or (a.isdecimal() and b.isdecimal() and int(a) == int(b)):  # "073" and "73" are one AIME answer
        return True
    read = json_or_none(a), json_or_none(b)  # numbers, and lists of calls
    return None not in read and same_json(*read)


def _dispute(record: Problem, other: Problem) -> Malformed:
    reason = f"same question as row {other.index} but another answer: {record.answer!r}, there {other.answer!r}"
    return Malformed(record.index, reason)


def _write(
    name: str | Source,
    source: Source,
    splits: dict[str, list],
    duplicates: int,
    malformed: list[Malformed],
    output_dir: Path,
    template: str,
    left: Sequence[str] = (),
) -> Report:
    name, kept = name if isinstance(name, str) else name.data_source, sum(map(len, splits.values()))
    files = {output_dir / f"{split}.parquet": len(records) for split, records in splits.items() if records}
    malformed = sorted(malformed, key=lambda m: m.row)
    reasons = Counter(m.reason for m in malformed).most_common()
    rows = kept + duplicates + len(malformed)
    sources = dict(Counter(record.data_source for records in splits.values() for record in records))
    unanswered = sum(isinstance(r, Problem) and not r.answer for records in splits.values() for r in records)
    no_call = sum(isinstance(r, CallProblem) and r.answer == NO_CALL for records in splits.values() for r in records)
    place = output_dir / "report.json"
    report = Report(
        name, rows, kept, duplicates, tuple(malformed), files, place, sources, unanswered, tuple(left), no_call
    )
    content = {"source": name, "rows": rows, "kept": kept, "duplicates": duplicates, "reasons": dict(reasons)}
    content |= {"sources": sources, "left_out": list(left), "no_call": no_call}
    content["malformed"] = [{"row": m.row, "reason": m.reason} for m in malformed]
    output_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(report.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if not kept and not malformed:
        raise UserError(f"{name} is an empty data set: no rows were read.")
    if not kept:
        reason, times = reasons[0]
        raise UserError(f"all {rows} rows of {name} are malformed ({times} x: {reason}): see {report.path}.")
    if "train" in splits and "validation" not in splits:
        # An earlier run's validation problems are now in train.
        (output_dir / "validation.parquet").unlink(missing_ok=True)
    write = write_problems if source.purpose == "rl" else write_traces
    for split, records in splits.items():
        write(records, output_dir / f"{split}.parquet", template=template, split=split)
    return report


def _rl_row(problem: Problem, template: str, split: str) -> dict:
    prompt, ability, own = render(template, problem.question), "math", dict[str, str]()
    if isinstance(problem, CallProblem):
        prompt, ability = render_conversation(template, problem.messages), ABILITY
        own = {"tools": problem.tools, "replies": problem.replies}
    if problem.extra:
        own[COLUMN] = kept_json(problem.extra)
    extra = {"index": problem.index, "split": split, "question": problem.question} | own
    return rl_row(problem.data_source, prompt, ability, problem.answer, **extra)


def _sft_row(trace: Trace, template: str, split: str) -> dict:
    as_they_are = trace.tools or get_template(template).answer_tags
    segments = trace.segments if as_they_are else without_answer_tags(trace.segments)
    own = {"tools": trace.tools, "replies": "[]"} if trace.tools else {}
    return {
        "data_source": trace.data_source,
        "question": trace.question,
        "prompt": render_conversation(template, trace.messages or [("user", trace.question)]),
        "segments": [{"kind": s.kind, "text": s.text} for s in segments],
        "extra_info": {"index": trace.index, "split": split} | own,
    }
