"""What our own values may be: ranges, choices, relations. Checked whenever a configuration is composed.

A key that is not named here takes whatever has its default's type (overrides.py). Relations to the data, the model or
the machine are preflight's.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from retool_mcore.config.overrides import LORA
from retool_mcore.errors import UserError


def _every(value: int) -> int:
    if value < 1 and value != -1:
        raise ValueError("1 or more, or -1 for never")
    return value


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("a power of two")
    return value


def _interval(value: list[float]) -> list[float]:
    if len(value) != 2 or not 0 <= value[0] < value[1] <= 1:
        raise ValueError("[low, high] with 0 <= low < high <= 1")
    return value


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

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AboveOne = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]  # AdamW moves a weight by up to about its learning rate
Every = Annotated[int, AfterValidator(_every)]
Reply = Literal["ignore", "tell", "skip", "back", "stop"]

# Policy losses that are their paper's with one aggregation only; the others' default is token-mean.
LOSS_AGGREGATIONS = {"gspo": "seq-mean-token-mean", "cispo": "token-mean", "sequence_clip": "seq-mean-token-sum"}

# Each type with the keys that have it, of one section or of the top; `?`: null is one more value.
VALUES: tuple[tuple[Any, str, str], ...] = (
    (Annotated[str, Field(pattern=_NAME)], "", "name"),
    (Annotated[str, Field(min_length=1)], "", "runs_dir"),
    (Natural, "", "seed?"),
    (Positive, "", "watchdog_minutes? max_difference"),
    (Count, "", "k problems? probe.sequences probe.tokens"),
    (NotNegative, "", "temperature"),
    (PositiveShare, "", "top_p"),
    (Literal["boxed", "answer_tag", "final_line", "calls", "tests", "environment"], "", "answer recipe.answer"),
    (Literal["exact", "rounded"], "", "decimals recipe.decimals"),
    (Literal["float32", "bfloat16", "float16"], "model", "dtype"),
    (Literal["checkpoint", "random"], "model", "init"),
    (Literal["cpu", "cuda"], "parallel", "device"),
    (Literal["H100-80", "H200-141", "A100-80"], "parallel", "gpu?"),
    (Count, "parallel", "nodes gpus_per_node tp pp rollout_tp micro_batch_tokens agent_workers? reward_workers?"),
    (Count, "parallel", "storage_units? max_num_seqs rollout.max_num_batched_tokens rollout.weight_bucket_mb"),
    (Natural, "parallel", "loader_workers"),
    (Rate, "parallel", "gpu_memory_utilization"),
    (Positive, "parallel", "min_bus_bandwidth_gbs?"),
    (Positive, "data", "held_back program_timeout_s"),
    (PartialShare, "data", "test_share sft_validation_share"),
    (Share, "data", "arithmetic.tool_share arithmetic.failed_share functions.right_share calls.near"),
    (Share, "data", "toolmath.code_share toolmath.failed_share calls.right_share"),
    (Literal["list", "lines"], "data", "functions.style calls.style"),
    (Count, "data", "curriculum.retire?"),
    (Annotated[list[float], AfterValidator(_interval)], "data", "curriculum.keep?"),
    (Annotated[str, Field(min_length=1)], "data", "curriculum.pass_rates?"),
    (Literal["grpo", "rloo", "reinforce_plus_plus_baseline", "gae"], "recipe", "advantage"),
    (
        Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"],
        "recipe",
        "loss_aggregation",
    ),
    (Literal["vanilla", "retool", "gspo", "cispo", "sequence_clip"], "recipe", "policy_loss"),
    (Natural, "recipe", "overlong_buffer critic.warmup_steps"),
    (Share, "recipe", "gamma lambda filters.verifier_failures? filters.repetition.limit"),
    (Rate, "recipe", "lr"),
    (PositiveShare, "recipe", "clip_low"),
    (Positive, "recipe", "clip_high loss_scale? critic.value_clip temperature"),
    (AboveOne, "recipe", "dual_clip?"),
    (NotNegative, "recipe", "kl_coefficient observation_weight"),
    (Count, "recipe", "max_turns filters.refill_limit"),
    (Annotated[list[float], AfterValidator(_interval)], "recipe", "filters.accuracy?"),
    (Annotated[int, AfterValidator(_power_of_two)], "recipe", "filters.repetition.n"),
    (Literal["text", "hermes", "none"], "rollout", "format"),
    (Count, "rollout", "max_prompt_tokens max_response_tokens max_observation_tokens max_turn_tokens max_turns live?"),
    (Count, "rollout", "max_observation_chars? error_lines"),
    (Literal["end", "text"], "rollout", "after_last_call"),
    (Share, "rollout", "sandbox_errors"),
    (Positive, "rollout", "temperature"),
    (PositiveShare, "rollout", "top_p"),
    (Literal["local", "fusion", "pool"], "sandbox", "kind"),
    (Positive, "sandbox", "timeout_s patience_s"),
    (Annotated[int, Field(ge=32)], "sandbox", "memory_mb"),  # Python itself takes about 10
    (Count, "sandbox", "max_output_bytes workers? concurrency"),
    (Literal["none", "process", "landlock", "namespaces"], "sandbox", "min_isolation"),
    (Count, "train", "batch mini_batch epochs steps? max_length eval_samples stop_after_worse? keep_checkpoints"),
    (Count, "train", "text_every?"),
    (Annotated[int, Field(ge=2)], "train", "n"),  # with one trajectory a group every advantage is zero
    (Natural, "train", "warmup_steps verify_push_every text_samples keep_trajectory_bytes"),
    (Rate, "train", "lr"),
    (PartialShare, "train", "min_lr"),
    (NotNegative, "train", "weight_decay"),
    (Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"], "train", "schedule"),
    (Every, "train", "save_every eval_every"),
    (Positive, "train", "save_minutes? eval_share"),
    (Annotated[str, Field(pattern=_BEST)], "train", "keep_best?"),
    (Literal["highest", "lowest"], "train", "best_is"),
    (list[Literal["console", "tensorboard", "wandb", "mlflow"]], "train", "loggers"),
    (Literal["sync", "separate_async"], "pipeline", "mode"),
    (Count, "pipeline", "updates"),
    (Literal["naive", "host", "nccl"], "pipeline", "transport"),
    (Natural, "alarms", "backs"),
    (Reply, "alarms", "nan.answer nan.then gradient_norm.answer gradient_norm.then entropy.answer entropy.then"),
    (Reply, "alarms", "mismatch.answer mismatch.then"),
    # Known only when the step's weights are saved and measured: nothing is left to skip or to go back to.
    (Literal["ignore", "tell", "stop"], "alarms", "reward.answer reward.then"),
    (Count, "alarms", "nan.in_a_row gradient_norm.in_a_row entropy.in_a_row mismatch.in_a_row reward.in_a_row"),
    (Count, "alarms", "gradient_norm.window reward.validations"),
    (AboveOne, "alarms", "gradient_norm.factor"),
    (Share, "alarms", "entropy.share"),
    (Positive, "alarms", "mismatch.bound reward.sigmas"),
    (Literal["none", "mlflow"], "trace", "backend"),
    (Count, "trace", "prompts?"),
    (Literal["vllm"], "verl.actor_rollout_ref.rollout", "name"),
    (Literal[False], "verl", "actor_rollout_ref.actor.checkpoint.async_save critic.checkpoint.async_save"),
    (Positive, "recipe", "critic.lr"),  # follows train.lr, whose sentence comes first
)
EXPECTED = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "list_type": "a list: [a,b]",
    "literal_error": "{expected}",
    "value_error": "{error}",
    "extra_forbidden": "one of the keys path, name, weight, question, answer, messages, tools, subset and split",
    "missing": "a value",
}
ADAPTER = functools.cache(TypeAdapter)  # made again for every value they take as long as the rest of a check


class OwnFile(BaseModel):
    """An entry of data.file.train, eval or sft. `name` is the data source's in metrics; a problem occurs `weight` times
    in an epoch; question, answer, messages and tools stand in for the columns of data.file; subset and split are the
    hub's."""

    model_config = ConfigDict(extra="forbid")
    path: str
    name: Annotated[str, Field(pattern=_NAME)]
    weight: Positive = 1.0
    question: str | None = None
    answer: str | None = None
    messages: str | None = None
    tools: str | None = None
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
    for model in (found for key in ("verl.actor_rollout_ref.model", "verl.model") for found in _at(config, key)):
        if model.get("lora_rank") or (model.get("lora") or {}).get("rank"):
            raise UserError(LORA)
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
    _check_rollout(config.get("rollout") or {})
    _check_train(config.get("train") or {})


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


def _check_train(train: Mapping) -> None:
    batch, mini_batch, steps, every = (train.get(key) for key in ("batch", "mini_batch", "steps", "eval_every"))
    if mini_batch and batch % mini_batch:
        raise UserError(
            f"train.batch={batch} is not a multiple of train.mini_batch={mini_batch} (both count prompts): change "
            "one of them, here or in data.rl."
        )
    if steps and train["warmup_steps"] >= steps:
        raise UserError(f"train.warmup_steps={train['warmup_steps']} must be below the run's {steps} steps.")
    best, patience = train.get("keep_best"), train.get("stop_after_worse")
    if every is not None and every < 1 and (patience or (best and best.startswith("val"))):
        what = f"stop_after_worse={patience} counts validations" if patience else f"keep_best={best} is of a validation"
        raise UserError(f"train.{what}, which train.eval_every={every} turns off: set one of the two, or it to null.")
