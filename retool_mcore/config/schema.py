"""Check our own values whenever a configuration is composed: each by its range (ranges.py), then their relations.

A key without a range takes whatever has its default's type (overrides.py). Relations to the data, the model or
the machine are preflight's.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from retool_mcore.config.ranges import EXPECTED, PATTERNS, VALUES, Count, Name, Texts
from retool_mcore.errors import UserError

# Policy losses that are their paper's with one aggregation only; the others' default is token-mean.
LOSS_AGGREGATIONS = {"gspo": "seq-mean-token-mean", "cispo": "token-mean", "sequence_clip": "seq-mean-token-sum"}

ADAPTER = functools.cache(TypeAdapter)  # made again for every value they take as long as the rest of a check


class OwnFile(BaseModel):
    """An entry of data.file.train, eval or sft. `name` is the data source's in metrics, unless the column `source`
    names each row's; a problem occurs `weight` times in an epoch; question, answer, messages, tools, source and keep
    stand in for the columns of data.file; subset and split are the hub's."""

    model_config = ConfigDict(extra="forbid")
    path: str
    name: Name
    weight: Annotated[float, Field(gt=0)] = 1.0
    question: str | None = None
    answer: str | None = None
    messages: str | None = None
    tools: str | None = None
    source: str | None = None
    keep: Texts | None = None
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
            full = f"{section}.{key}".removeprefix(".")
            for value in _at(config, full):
                left_open = isinstance(value, str) and ("${" in value or value == "???")
                if not left_open:
                    validate(kind, value, full)
    loggers, verls = ([*_at(config, key)] for key in ("train.loggers", "verl.trainer.logger"))
    if loggers and verls and verls[0] != [*loggers[0], "file"]:
        raise UserError(f"verl.trainer.logger={verls[0]} follows train.loggers: set that.")
    loss, aggregation = (next(_at(config, f"recipe.{key}"), None) for key in ("policy_loss", "loss_aggregation"))
    if (own := LOSS_AGGREGATIONS.get(loss, aggregation)) != aggregation:
        raise UserError(
            f"recipe.policy_loss={loss} is its paper's with recipe.loss_aggregation={own}, not {aggregation}: set that."
        )
    curriculum = next(_at(config, "data.curriculum"), {})
    if curriculum.get("keep") and not curriculum["pass_rates"]:
        raise UserError(f"data.curriculum.keep={curriculum['keep']} is of data.curriculum.pass_rates: give that, too.")
    _check_stages(next(_at(config, "data.stages"), None))
    _check_rollout(config.get("rollout") or {})
    _check_train(config.get("train") or {})
    _check_critic(config.get("recipe") or {}, config.get("train") or {})
    for place in ("verl.optim", "verl.actor_rollout_ref.actor.optim", "verl.critic.optim"):
        for optimizer in _at(config, place):
            _check_optimizer(place, optimizer)
    for section in _at(config, "data.sft"):
        _check_floor("data.sft", section)
    for layout in _at(config, "parallel"):
        _check_engine(layout)


def validate(kind: Any, value: Any, key: str) -> Any:
    """`value` as `kind` makes it. Raises UserError, which names `key`, where it is none."""
    try:
        return ADAPTER(kind).validate_python(value, strict=True)
    except ValidationError as errors:
        error = max(errors.errors(), key=lambda one: one["type"] == "extra_forbidden")  # a misspelt key is missing, too
    expected = EXPECTED.get(error["type"], error["msg"]).format(**error.get("ctx", {}))
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
        raise UserError(
            f"rollout.max_observation_tokens={observation} must be below {most}: one observation would fill the whole "
            "response."
        )
    if turn > rollout["max_response_tokens"]:
        raise UserError(f"rollout.max_turn_tokens={turn} exceeds {most}: lower it.")


def _check_stages(stages: Mapping | None) -> None:
    """Of an environment's trajectories (environments/stages.py)."""
    for name, count in (stages or {}).items():
        validate(Count, count, f"data.stages.{name}")


def _check_train(train: Mapping) -> None:
    batch, mini_batch, steps, every = (train.get(key) for key in ("batch", "mini_batch", "steps", "eval_every"))
    rl = "n" in train  # trajectories a prompt; without them it is SFT's section
    if mini_batch and batch % mini_batch:
        raise UserError(
            f"train.batch={batch} is not a multiple of train.mini_batch={mini_batch} (both count prompts): change one "
            "of them, here or in data.rl."
        )
    if rl and steps is None:
        raise UserError("train.steps=null: RL has no epochs to end with, so give the number of its steps.")
    if steps and train["warmup_steps"] >= steps:
        raise UserError(f"train.warmup_steps={train['warmup_steps']} must be below the run's {steps} steps.")
    if "min_lr" in train:
        _check_floor("train", train)
    best, patience, save = train.get("keep_best"), train.get("stop_after_worse"), train.get("save_every")
    if every is not None and every < 1 and (patience or (best and best.startswith("val"))):
        what = f"stop_after_worse={patience} counts validations" if patience else f"keep_best={best} is of a validation"
        raise UserError(f"train.{what}, which train.eval_every={every} turns off: set one of the two, or it to null.")
    if best and best.startswith("val/evaluation/"):
        raise UserError(
            f"train.keep_best={best} would choose a checkpoint by the problems that are reported: set it to "
            "val/accuracy, the held-back problems'."
        )
    if best and (best.startswith(("val/", "train/")) and best.endswith("/loss")) == rl:
        stage, other, fitting = ("RL", "SFT", "val/accuracy") if rl else ("SFT", "RL", "val/loss")
        raise UserError(
            f"train.keep_best={best} is a metric of {other}, which {stage} does not log: set it to {fitting}."
        )
    if not rl and best and best.startswith("val/") and save > 0 and every and save % every and every % save:
        raise UserError(
            f"train.keep_best={best} chooses among steps that are saved and validated, and train.save_every={save} and "
            f"train.eval_every={every} rarely meet: let one be a multiple of the other, or set train.keep_best=null."
        )


def _check_floor(section: str, rates: Mapping) -> None:
    if rates["min_lr"] is not None and rates["min_lr"] > rates["lr"]:
        raise UserError(f"{section}.min_lr={rates['min_lr']:g} exceeds {section}.lr={rates['lr']:g}: lower it.")


def _check_critic(recipe: Mapping, train: Mapping) -> None:
    """What only a critic reads, and how long the policy waits for it."""
    if "critic" not in recipe:
        return
    warmup = recipe["critic"]["warmup_steps"]
    if recipe["advantage"] == "gae":
        if warmup >= train["steps"]:
            raise UserError(
                f"recipe.critic.warmup_steps={warmup} must be below the run's {train['steps']} steps: the policy is "
                "trained in none of them."
            )
        return
    given = {"gamma": recipe["gamma"] != 1, "lambda": recipe["lambda"] != 1, "critic.warmup_steps": warmup > 0}
    for key in (key for key, there in given.items() if there):
        raise UserError(f"recipe.{key} is of recipe.advantage=gae and has no effect with {recipe['advantage']}.")


def _check_optimizer(place: str, optimizer: Mapping) -> None:
    """What Megatron's schedule of the learning rate asserts (core/optimizer_param_scheduler.py)."""
    if not {"lr_decay_style", "lr_wsd_decay_steps"} <= optimizer.keys():  # before verl's defaults are there
        return
    _check_floor(place, optimizer)
    if optimizer["lr_decay_style"] == "WSD" and not optimizer["lr_wsd_decay_steps"]:
        raise UserError(
            f"the schedule WSD needs the number of steps in which the rate falls: add {place}.lr_wsd_decay_steps=STEPS."
        )


def _check_engine(layout: Mapping) -> None:
    """What vLLM's scheduler asks (vllm/config/scheduler.py), and what Ray waits for."""
    tokens, sequences = layout["rollout"]["max_num_batched_tokens"], layout["max_num_seqs"]
    if tokens != "???" and sequences > tokens:
        raise UserError(
            f"parallel.max_num_seqs={sequences} exceeds parallel.rollout.max_num_batched_tokens={tokens}, and an "
            "engine takes at least one token of each trajectory at once: lower it, or raise the other."
        )
