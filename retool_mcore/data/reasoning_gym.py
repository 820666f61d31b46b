"""Problems of reasoning-gym's families, drawn by seed: `data=reasoning_gym`.

The package generates in the sandbox of its grader (retool_mcore/official); this process never imports it. A family's
rows of different seeds are different draws: training, validation and evaluation have ranges of seeds of their own, and
no question is in two of them. A family may have levels, each a data source: accuracy is reported by level, and the
curriculum can draw by it.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from retool_mcore.data.records import Problem, normalise_question
from retool_mcore.errors import UserError
from retool_mcore.official.graders import REASONING_GYM

NAME = "reasoning_gym"
KEY = "data.reasoning_gym.families"
SPLITS = ("held_back", "test", "train")  # in which order a question goes to the first that draws it
SEEDS_A_SPLIT = 1_000_000  # of each run seed: a split draws from as many seeds of the families
MAKE_S = 300.0  # of one chunk
_CHUNK = 32
_DRAWS_PER_PROBLEM = 20
_SHOWN = 12  # families in a message


class Family(BaseModel):
    """An entry of the list of families. `name` is the data source in metrics, `weight` its share of the problems;
    `levels` are parameters that are added to `parameters`, one data source a level: NAME_1, NAME_2 and so on."""

    model_config = ConfigDict(extra="forbid", strict=True)
    family: str
    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = ""
    weight: Annotated[float, Field(gt=0, strict=False)] = 1.0
    parameters: dict[str, Any] = {}
    levels: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None


@dataclass(frozen=True)
class Source:
    """A source that rows of one data source are drawn from."""

    name: str
    family: str
    parameters: Mapping[str, Any]
    weight: float


@dataclass(frozen=True)
class Made:
    """The problems of each split; `unfair`: entries by data source that were left out, since their family's own answer
    does not score 1."""

    splits: dict[str, list[Problem]]
    unfair: dict[str, int]


def sources(value: Any) -> list[Source]:
    """Return the data sources that `families` names: names, sections, or a list of them. Raises UserError for one that
    reasoning-gym does not have, with the nearest names, before a row is drawn."""
    entries = value if isinstance(value, list) else [value]
    if not value:
        raise UserError(f"{KEY} names no family: give some, as in {KEY}=[chain_sum,gcd] (docs/official.md).")
    families = [_read(entry) for entry in entries]
    known = REASONING_GYM.ask("families", MAKE_S)
    if known is None:
        raise RuntimeError("reasoning-gym did not list its families")
    listed = []
    for entry in families:
        if entry.family not in known:
            raise UserError(f"{KEY}: reasoning-gym has no family {entry.family!r}: {_nearest(entry.family, known)}.")
        levels = entry.levels or [{}]
        for number, level in enumerate(levels, 1):
            parameters = {**entry.parameters, **level}
            for name in parameters:
                if name not in known[entry.family]:
                    there = _nearest(name, known[entry.family])
                    raise UserError(f"{KEY}: {entry.family} has no parameter {name!r}: {there}.")
            name = (entry.name or entry.family) + (f"_{number}" if entry.levels else "")
            listed.append(Source(name, entry.family, parameters, entry.weight / len(levels)))
    names = [source.name for source in listed]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{KEY} has two data sources of the name {twice[0]}: give one of them a name of its own.")
    return listed


def _read(entry: Any) -> Family:
    entry = {"family": entry} if isinstance(entry, str) else entry
    try:
        return TypeAdapter(Family).validate_python(entry)
    except ValidationError as errors:
        error = errors.errors()[0]
    place = ".".join([KEY, *map(str, error["loc"])])
    keys = ", ".join(Family.model_fields)
    reason = f"expected one of the keys {keys}" if error["type"] == "extra_forbidden" else error["msg"]
    raise UserError(f"{place}: {reason}.")


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?".removesuffix("?")
    if not known:
        return "it has none"
    shown = ", ".join(sorted(known)[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
    return f"there are {shown}"


def draw(drawn_from: Sequence[Source], sizes: Mapping[str, int], seed: int) -> Made:
    """Draw the problems of each split, `sizes[split]` of them, in the shares of the sources' weights.

    Raises UserError for parameters that a family refuses, and where it has too few different questions.
    """
    seen: set[str] = set()
    splits: dict[str, list[Problem]] = {}
    unfair: dict[str, int] = {}
    for number, split in enumerate(SPLITS):
        begin = (seed * len(SPLITS) + number) * SEEDS_A_SPLIT
        rows: list[tuple[Source, dict]] = []
        for source, count in zip(drawn_from, _shares(drawn_from, sizes[split]), strict=True):
            rows += [(source, row) for row in _distinct(source, begin, count, seen, unfair)]
        splits[split] = [_problem(source, row, index) for index, (source, row) in enumerate(rows)]
    return Made(splits, unfair)


def _shares(drawn_from: Sequence[Source], total: int) -> list[int]:
    """Whole numbers in the proportions of the weights, which add up to `total`."""
    weights = sum(source.weight for source in drawn_from)
    exact = [total * source.weight / weights for source in drawn_from]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_rest[: total - sum(counts)]:
        counts[place] += 1
    return counts


def _distinct(source: Source, begin: int, count: int, seen: set[str], unfair: dict[str, int]) -> list[dict]:
    """`count` rows whose questions are not in `seen`, which they are added to."""
    rows: list[dict] = []
    for row in _rows(source, begin, count, unfair) if count else ():
        if (key := normalise_question(row["question"])) not in seen:
            seen.add(key)
            rows.append(row)
            if len(rows) == count:
                return rows
    if count:
        raise UserError(
            f"{KEY}: {source.family} with the parameters of {source.name} has only {len(rows)} of {count} further "
            "different questions: ask for fewer problems, or for harder ones."
        )
    return rows


def _rows(source: Source, begin: int, count: int, unfair: dict[str, int]) -> Iterator[dict]:
    asked: dict[str, Any] = {"family": source.family, "parameters": dict(source.parameters)}
    for start in range(0, min(_DRAWS_PER_PROBLEM * count + _CHUNK, SEEDS_A_SPLIT - _CHUNK), _CHUNK):
        size = min(_CHUNK, count) if start == 0 else _CHUNK
        made = REASONING_GYM.ask("make", MAKE_S, in_file=True, **asked, seed=begin + start, size=size)
        if made is None:
            raise UserError(
                f"{KEY}: {source.name} needs more than {MAKE_S:g} s, or more memory than {REASONING_GYM.memory_mb} MB, "
                f"for {size} problems: choose easier parameters."
            )
        if "refused" in made:
            raise UserError(f"{KEY}: {source.family} refuses the parameters of {source.name} ({made['refused']}).")
        if made["unfair"]:
            unfair[source.name] = unfair.get(source.name, 0) + made["unfair"]
        yield from made["rows"]


def _problem(source: Source, row: Mapping[str, Any], index: int) -> Problem:
    extra = {"family": source.family, "entry": row["entry"]}
    return Problem(source.name, row["question"], row["answer"] or "", index, extra=extra)
