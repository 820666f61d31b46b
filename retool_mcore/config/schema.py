"""What our own values may be: ranges, choices, relations. Checked whenever a configuration is composed.

A key that is not named here takes whatever has its default's type (overrides.py). Relations to the data, the model or
the machine are preflight's.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from retool_mcore.errors import UserError, refusals
from retool_mcore.tables import yaml_beside


def _must(hold: Callable[[Any], bool], expected: str) -> AfterValidator:
    def checked(value: Any) -> Any:
        if not hold(value):
            raise ValueError(expected)
        return value

    return AfterValidator(checked)


refused = refusals(__file__)
_SOURCE = r"([\w.-]+/)?"
_BEST = (
    rf"^(val/{_SOURCE}accuracy|reward/{_SOURCE}accuracy|reward/tool_productivity|critic/(score|rewards)/(mean|max|min)"
    r"|behaviour/[\w./@-]+|actor/(entropy|kl_loss|ppo_kl)|(train|val)/loss)$"
)
_NAME = r"^\w[\w.+-]*(/\w[\w.+-]*)*$"
PATTERNS = {
    _NAME: "letters, digits and ._+- in one or several folders, as in mine or maths/first",
    _BEST: "a metric that says how good the policy is, as val/accuracy, reward/accuracy, critic/score/mean or, in SFT, "
    "val/loss",
}

Every = Annotated[int, _must(lambda n: n >= 1 or n == -1, "1 or more, or -1 for never")]
Reply = Literal["ignore", "tell", "skip", "back", "stop"]
Name = Annotated[str, Field(pattern=_NAME)]
Best = Annotated[str, Field(pattern=_BEST)]
Text = Annotated[str, Field(min_length=1)]
Texts = list[Text]
_INTERVAL = _must(lambda v: len(v) == 2 and 0 <= v[0] < v[1] <= 1, "[low, high] with 0 <= low < high <= 1")
Interval = Annotated[list[float], _INTERVAL]
Weights = Annotated[dict[str, float], _must(lambda w: any(w.values()) and min(w.values()) >= 0, "0 or more, one above")]
PowerOfTwo = Annotated[int, _must(lambda n: n >= 1 and not n & (n - 1), "a power of two")]
Loggers = list[Literal["console", "tensorboard", "wandb", "mlflow"]]
Targets = Annotated[list[Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]], Field(min_length=1)]

# Policy losses that are their paper's with one aggregation only; the others' default is token-mean.
LOSS_AGGREGATIONS = {"gspo": "seq-mean-token-mean", "cispo": "token-mean", "sequence_clip": "seq-mean-token-sum"}

_TABLES = yaml_beside(__file__, "values.yaml")
_NUMBERS: dict[str, Any] = {
    name: Annotated[{"int": int, "float": float}[kind], Field(**bounds)]
    for name, (kind, bounds) in _TABLES["numbers"].items()
}
VALUES: tuple[tuple[Any, str, str], ...] = tuple(
    ((_NUMBERS | globals())[kind] if isinstance(kind, str) else Literal[tuple(kind)], section, keys)
    for kind, section, keys in _TABLES["values"]
)
ADAPTER = functools.cache(TypeAdapter)  # made again for every value they take as long as the rest of a check


class OwnFile(BaseModel):
    """An entry of data.file.train, eval or sft. `name` is the data source's in metrics, unless the column `source`
    names each row's; a problem occurs `weight` times in an epoch; question, answer, messages, tools and source stand
    in for the columns of data.file; subset and split are the hub's."""

    model_config = ConfigDict(extra="forbid")
    path: str
    name: Annotated[str, Field(pattern=_NAME)]
    weight: Annotated[float, Field(gt=0)] = 1.0
    question: str | None = None
    answer: str | None = None
    messages: str | None = None
    tools: str | None = None
    source: str | None = None
    subset: str | None = None
    split: str = "train"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        value = {"path": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and isinstance(value.get("path"), str):
            return {"name": PurePath(value["path"]).stem} | dict(value)
        return value


def own_files(role: str, value: Any) -> list[OwnFile]:
    """The entries of data.file.ROLE: null, a location, a section, or a list of them. Raises UserError."""
    entries = [] if value is None else value if isinstance(value, list) else [value]
    key = f"data.file.{role}"
    files = [validate(OwnFile, entry, key) for entry in entries]
    names = [file.name for file in files]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{key} has two files of the name {twice[0]}: give names, as in [{{path: a.csv, name: a}}].")
    return files


def check(config: Mapping[str, Any]) -> None:
    """Refuse a resolved configuration (plain) that holds a value outside its range. Raises UserError."""
    for kind, section, keys in VALUES:
        for key in keys.split():
            full = f"{section}.{key}".removeprefix(".").removesuffix("?")
            for value in _at(config, full):
                left_open = isinstance(value, str) and ("${" in value or value == "???")
                if not left_open and (value is not None or not key.endswith("?")):
                    validate(kind, value, full)
    loggers, verls = ([*_at(config, key)] for key in ("train.loggers", "verl.trainer.logger"))
    if loggers and verls and verls[0] != [*loggers[0], "file"]:
        raise UserError(f"verl.trainer.logger={verls[0]} follows train.loggers: set that.")
    loss, aggregation = (next(_at(config, f"recipe.{key}"), None) for key in ("policy_loss", "loss_aggregation"))
    if (own := LOSS_AGGREGATIONS.get(loss, aggregation)) != aggregation:
        raise refused("aggregation", loss=loss, own=own, aggregation=aggregation)
    curriculum = next(_at(config, "data.curriculum"), {})
    if curriculum.get("keep") and not curriculum["pass_rates"]:
        raise UserError(f"data.curriculum.keep={curriculum['keep']} is of data.curriculum.pass_rates: give that, too.")
    _check_rollout(config.get("rollout") or {})
    _check_train(config.get("train") or {})


def validate(kind: Any, value: Any, key: str) -> Any:
    """`value` as `kind` makes it. Raises UserError, which names `key`, where it is none."""
    try:
        return ADAPTER(kind).validate_python(value, strict=True)
    except ValidationError as errors:
        error = max(errors.errors(), key=lambda one: one["type"] == "extra_forbidden")  # a misspelt key is missing, too
    expected = _TABLES["expected"].get(error["type"], error["msg"]).format(**error.get("ctx", {}))
    if error["type"] == "string_pattern_mismatch":
        expected = PATTERNS[error["ctx"]["pattern"]]
    key = ".".join([key, *map(str, error["loc"])])
    shown = "" if error["type"] == "missing" else f"={'null' if error['input'] is None else error['input']}"
    raise UserError(f"{key}{shown}: expected {expected}.")


def _at(config: Any, key: str) -> Iterator[Any]:
    """The value of a dotted key, if the configuration has it: no stage has all."""
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return
        config = config[part]
    yield config


def _check_rollout(rollout: Mapping) -> None:
    if "max_response_tokens" not in rollout:
        return
    most = f"rollout.max_response_tokens={rollout['max_response_tokens']}"
    observation, turn = rollout["max_observation_tokens"], rollout["max_turn_tokens"]
    if observation >= rollout["max_response_tokens"]:
        raise refused("observation", observation=observation, most=most)
    if turn > rollout["max_response_tokens"]:
        raise UserError(f"rollout.max_turn_tokens={turn} exceeds {most}: lower it.")


def _check_train(train: Mapping) -> None:
    batch, mini_batch, steps, every = (train.get(key) for key in ("batch", "mini_batch", "steps", "eval_every"))
    if mini_batch and batch % mini_batch:
        raise refused("mini_batch", batch=batch, mini_batch=mini_batch)
    if steps and train["warmup_steps"] >= steps:
        raise UserError(f"train.warmup_steps={train['warmup_steps']} must be below the run's {steps} steps.")
    best, patience = train.get("keep_best"), train.get("stop_after_worse")
    if every is not None and every < 1 and (patience or (best and best.startswith("val"))):
        what = f"stop_after_worse={patience} counts validations" if patience else f"keep_best={best} is of a validation"
        raise UserError(f"train.{what}, which train.eval_every={every} turns off: set one of the two, or it to null.")
