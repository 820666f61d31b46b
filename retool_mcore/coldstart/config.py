"""The configuration of a cold-start run: one YAML file, every key known and typed."""

from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml import YAMLError

from retool_mcore.errors import UserError, refused_value
from retool_mcore.files import at_home

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Columns(_Section):
    """Where a source row keeps what: a column, or a path into it such as `conversations.1.value`.

    `reasoning` may be a list of such, joined; null: the problem goes to the rewriter without reasoning. `answer` may be
    a whole solution, whose last box counts; null: the box that ends the reasoning.
    """

    problem: str
    reasoning: str | list[str] | None = None
    answer: str | None = None
    difficulty: str | None = None


class Source(_Section):
    """`path`: a file, a folder, or a data set on the hub, there perhaps its `subset`. `where`: column to the value that
    a row must have in it."""

    path: str
    columns: Columns
    subset: str | None = None
    name: str = "coldstart"
    where: dict[str, Any] | None = None
    max_rows: Count | None = None
    max_row_bytes: Count = 500_000


class Dedup(_Section):
    jaccard: Share = 0.8
    words: Count = 3
    per_problem: Count = 1


class EvaluationFile(_Section):
    path: str
    problem: str = "problem"


class Decontaminate(_Section):
    files: list[EvaluationFile] = []
    ngram: Count = 10


class Model(_Section):
    """An OpenAI-compatible endpoint; prices are per million tokens, in any one currency. No key goes to `url` unless
    `api_key_env` names the environment variable that holds the one for it."""

    url: str
    name: str
    api_key_env: str | None = None
    concurrency: Count = 32
    timeout_s: float = 600.0
    retries: int = 6
    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: Count = 8192
    seed: int = 0
    structured: Literal["auto", "never"] = "auto"
    price_in: float = 0.0
    price_out: float = 0.0


class Judge(_Section):
    """`samples` answers a problem; at least `min_share` of them must be right."""

    model: Model | None = None
    samples: Count = 1
    min_share: Share = 0.5


class Rewrite(_Section):
    model: Model
    instruction: str | None = None


class Execution(_Section):
    """`on_error`: of a trace in which a program fails."""

    on_mismatch: Literal["repair", "drop"] = "repair"
    on_error: Literal["keep", "drop"] = "drop"
    session: bool = False
    concurrency: Count = 8
    max_output_chars: Count = 4000
    sandbox: dict[str, Any] = {"kind": "local"}


class Select(_Section):
    """`tokenizer`: a folder or hub name, or `tiny`, the embedded one. Bounds are inclusive; null is none."""

    tokenizer: str = "tiny"
    max_tokens: int | None = 16384
    min_programs: int = 1
    max_programs: int | None = 16
    min_difficulty: float | None = None
    max_difficulty: float | None = None
    max_judge_share: float | None = None


class Config(_Section):
    output: str
    rewrite: Rewrite
    source: Source
    dedup: Dedup = Dedup()
    decontaminate: Decontaminate = Decontaminate()
    judge: Judge = Judge()
    execution: Execution = Execution()
    select: Select = Select()
    validation_share: Share = 0.05
    seed: int = 0
    processes: Count | None = None


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """The configuration in `path` with `KEY=VALUE` overrides. Raises UserError for a file that cannot be read, a key
    that does not exist, a value of the wrong type, and one that is missing."""
    if not Path(path).is_file():
        raise UserError(f"no such file: {path}. Give a configuration such as configs/coldstart/openthoughts.yaml.")
    try:
        merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
        return Config.model_validate(at_home(OmegaConf.to_container(merged, resolve=True)))
    except ValidationError as error:
        missing = [".".join(map(str, e["loc"])) for e in error.errors() if e["type"] == "missing"]
        if missing:
            raise UserError(f"{path} lacks {', '.join(missing)}: set it there or as KEY=VALUE.") from error
        raise UserError(f"{path}: {refused_value(error)}. The keys are those of docs/coldstart.md.") from error
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{path}: {reason}. The keys are those of docs/coldstart.md.") from error
