"""The configuration of a cold-start run: one YAML file, every key known and typed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from retool_mcore.errors import UserError


@dataclass
class Columns:
    """Where a source row keeps what: a column, or a path into it such as `conversations.1.value`.

    `reasoning` may be a list of such, joined; null: the problem goes to the rewriter without reasoning. `answer` may be
    a whole solution, whose last box counts; null: the box that ends the reasoning.
    """

    problem: str = MISSING
    reasoning: Any = None
    answer: str | None = None
    difficulty: str | None = None


@dataclass
class Source:
    """`path`: a file, a folder, or a data set on the hub, there perhaps its `subset`. `where`: column to the value that
    a row must have in it."""

    path: str = MISSING
    subset: str | None = None
    name: str = "coldstart"
    where: dict[str, Any] | None = None
    columns: Columns = field(default_factory=Columns)
    max_rows: int | None = None
    max_row_bytes: int = 500_000


@dataclass
class Dedup:
    jaccard: float = 0.8
    words: int = 3
    per_problem: int = 1


@dataclass
class EvaluationFile:
    path: str = MISSING
    problem: str = "problem"


@dataclass
class Decontaminate:
    files: list[EvaluationFile] = field(default_factory=list)
    ngram: int = 10


@dataclass
class Model:
    """An OpenAI-compatible endpoint; prices are per million tokens, in any one currency. No key goes to `url` unless
    `api_key_env` names the environment variable that holds the one for it."""

    url: str = MISSING
    name: str = MISSING
    api_key_env: str | None = None
    concurrency: int = 32
    timeout_s: float = 600.0
    retries: int = 6
    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 8192
    seed: int = 0
    structured: str = "auto"
    price_in: float = 0.0
    price_out: float = 0.0


@dataclass
class Judge:
    """`samples` answers a problem; at least `min_share` of them must be right."""

    model: Model | None = None
    samples: int = 1
    min_share: float = 0.5


@dataclass
class Rewrite:
    model: Model = field(default_factory=Model)
    instruction: str | None = None


@dataclass
class Execution:
    """`on_mismatch`: repair or drop. `on_error`: keep or drop a trace in which a program fails."""

    on_mismatch: str = "repair"
    on_error: str = "drop"
    session: bool = True
    concurrency: int = 8
    max_output_chars: int = 4000
    sandbox: dict[str, Any] = field(default_factory=lambda: {"kind": "local"})


@dataclass
class Select:
    """`tokenizer`: a folder or hub name, or `tiny`, the embedded one. Bounds are inclusive; null is none."""

    tokenizer: str = "tiny"
    max_tokens: int | None = 16384
    min_programs: int = 1
    max_programs: int | None = 16
    min_difficulty: float | None = None
    max_difficulty: float | None = None
    max_judge_share: float | None = None


@dataclass
class Config:
    output: str = MISSING
    source: Source = field(default_factory=Source)
    dedup: Dedup = field(default_factory=Dedup)
    decontaminate: Decontaminate = field(default_factory=Decontaminate)
    judge: Judge = field(default_factory=Judge)
    rewrite: Rewrite = field(default_factory=Rewrite)
    execution: Execution = field(default_factory=Execution)
    select: Select = field(default_factory=Select)
    validation_share: float = 0.05
    seed: int = 0
    processes: int | None = None


_CHOICES = {
    "execution.on_mismatch": ("repair", "drop"),
    "execution.on_error": ("keep", "drop"),
    "rewrite.model.structured": ("auto", "never"),
    "judge.model.structured": ("auto", "never"),
}
_AT_LEAST_ONE = (
    "source.max_rows",
    "source.max_row_bytes",
    "dedup.words",
    "dedup.per_problem",
    "decontaminate.ngram",
    "judge.samples",
    "execution.concurrency",
    "execution.max_output_chars",
    "processes",
    *(f"{purpose}.model.{name}" for purpose in ("judge", "rewrite") for name in ("concurrency", "max_tokens")),
)
_SHARES = ("dedup.jaccard", "judge.min_share", "validation_share")


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """The configuration in `path` with `KEY=VALUE` overrides. Raises UserError for a file that cannot be read, a key
    that does not exist, a value of the wrong type, and one that is missing."""
    if not Path(path).is_file():
        raise UserError(f"no such file: {path}. Give a configuration such as configs/coldstart/openthoughts.yaml.")
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(Config), OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides))
        )
        if missing := OmegaConf.missing_keys(merged):
            raise UserError(f"{path} lacks {', '.join(sorted(missing))}: set it there or as KEY=VALUE.")
        for key, choices in _CHOICES.items():
            _check(merged, key, choices.__contains__, " or ".join(choices))
        for key in _AT_LEAST_ONE:
            _check(merged, key, lambda value: value >= 1, "at least 1")
        for key in _SHARES:
            _check(merged, key, lambda value: 0 <= value <= 1, "a share from 0 to 1")
        return OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        key = f" ({key})" if (key := getattr(error, "full_key", None)) else ""
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{path}{key}: {reason}. The keys are those of docs/coldstart.md.") from error


def _check(config: DictConfig, key: str, fits: Callable[[Any], bool], expected: str) -> None:
    value = OmegaConf.select(config, key)
    if value is not None and not fits(value):
        raise UserError(f"{key} is {value!r}: expected {expected}.")
