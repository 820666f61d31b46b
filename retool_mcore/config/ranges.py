"""The range of each value of our configuration, and the words for what was expected; schema.py checks them."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

_SOURCE = r"([\w.-]+/)?"
_BEST = (
    rf"^(val/{_SOURCE}accuracy|reward/{_SOURCE}accuracy|reward/tool_productivity|critic/(score|rewards)/(mean|max|min)"
    r"|behaviour/[\w./@-]+|actor/(entropy|kl_loss|ppo_kl)|(train|val)/loss)$"
)
_NAME = r"^\w[\w.+-]*(/\w[\w.+-]*)*$"
# What was expected, by the pattern of a text.
PATTERNS = {
    _NAME: "letters, digits and ._+- in one or several folders, as in mine or maths/first",
    _BEST: "a metric that says how good the policy is, as val/accuracy, reward/accuracy, critic/score/mean or, in SFT, "
    "val/loss",
}
# What was expected, by pydantic's type of an error; the fields are those of the error's context.
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
    "too_short": "a list that is not empty",
    "literal_error": "{expected}",
    "value_error": "{error}",
    "extra_forbidden": "one of the keys path, name, weight, question, answer, messages, tools, source, keep, subset "
    "and split",
    "missing": "a value",
}


def _must(hold: Callable[[Any], bool], expected: str) -> AfterValidator:
    def checked(value: Any) -> Any:
        if not hold(value):
            raise ValueError(expected)
        return value

    return AfterValidator(checked)


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AboveOne = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]  # AdamW moves a weight by up to about its learning rate
Mebibytes = Annotated[int, Field(ge=32)]  # Python itself takes about 10
Observation = Annotated[int, Field(ge=32)]  # room for the marker that says how much was cut (rollout/episode.py)
Norms = Annotated[int, Field(ge=8)]  # fewer make no median (state/alarms.py)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Group = Annotated[int, Field(ge=2)]  # with one trajectory a group every advantage is zero
Every = Annotated[int, _must(lambda n: n >= 1 or n == -1, "1 or more, or -1 for never")]
PowerOfTwo = Annotated[int, _must(lambda n: n >= 1 and not n & (n - 1), "a power of two")]
_INTERVAL = _must(lambda v: len(v) == 2 and 0 <= v[0] < v[1] <= 1, "[low, high] with 0 <= low < high <= 1")
Interval = Annotated[list[float], _INTERVAL]
Weights = Annotated[dict[str, float], _must(lambda w: any(w.values()) and min(w.values()) >= 0, "0 or more, one above")]

Name = Annotated[str, Field(pattern=_NAME)]
Best = Annotated[str, Field(pattern=_BEST)]
Text = Annotated[str, Field(min_length=1)]
Texts = list[Text]
Reply = Literal["ignore", "tell", "skip", "back", "stop"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
CacheType = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"]
Loggers = list[Literal["console", "tensorboard", "wandb", "mlflow"]]
Sets = Annotated[
    list[Literal["held_back", "evaluation"]],
    _must(
        lambda sets: "held_back" in sets and len(set(sets)) == len(sets),
        "held_back, by which a checkpoint is chosen, and perhaps evaluation",
    ),
]
Targets = Annotated[list[Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]], Field(min_length=1)]

# A type, a section ("" for the top), and the section's keys of that type. The first value that is wrong is reported.
VALUES: tuple[tuple[Any, str, str], ...] = (
    (Name, "", "name"),
    (Text, "", "runs_dir"),
    (Natural | None, "", "seed"),
    (Positive | None, "", "watchdog_minutes"),
    (Positive, "", "max_difference"),
    (Count, "", "k probe.sequences probe.tokens"),
    (Count | None, "", "problems"),
    (NotNegative, "", "temperature"),
    (PositiveShare, "", "top_p"),
    (Literal["boxed", "answer_tag", "final_line", "calls", "tests", "environment"], "", "answer recipe.answer"),
    (Literal["exact", "rounded"], "", "decimals recipe.decimals"),
    (Literal["wrong", "right"], "recipe", "copied_answers"),
    (Literal["float32", "bfloat16", "float16"], "model", "dtype"),
    (Literal["checkpoint", "random"], "model", "init"),
    (Natural, "model", "lora.rank"),
    (Count, "model", "lora.alpha"),
    (Targets, "model", "lora.targets"),
    (Literal["cpu", "cuda"], "parallel", "device"),
    (Literal["H100-80", "H200-141", "A100-80"] | None, "parallel", "gpu"),
    (Count, "parallel", "nodes gpus_per_node tp pp rollout_tp micro_batch_tokens"),
    (Count | None, "parallel", "agent_workers reward_workers"),
    (Count, "parallel", "max_num_seqs rollout.max_num_batched_tokens rollout.weight_bucket_mb"),
    (Natural, "parallel", "loader_workers"),
    (CacheType | None, "parallel", "rollout.kv_cache_dtype"),
    (Rate, "parallel", "gpu_memory_utilization"),
    (Positive | None, "parallel", "min_bus_bandwidth_gbs nccl_timeout_minutes"),
    (Positive, "data", "held_back program_timeout_s"),
    (PartialShare, "data", "test_share sft_validation_share"),
    (Count, "data", "episodes.train episodes.held_back episodes.test"),
    (Natural, "data", "arithmetic.sft arithmetic.train arithmetic.validation arithmetic.held_back"),
    (Share, "data", "arithmetic.tool_share arithmetic.failed_share functions.right_share calls.near"),
    (Share, "data", "toolmath.code_share toolmath.failed_share calls.right_share"),
    (Weights, "data", "toolmath.mix calls.mix"),
    (Literal["list", "lines"], "data", "functions.style calls.style"),
    (
        Literal["exact", "loose"],
        "data",
        "file.texts sources.xlam.texts sources.toolace.texts sources.bfcl.texts",
    ),
    (Count, "data", "reasoning_gym.train reasoning_gym.test reasoning_gym.held_back"),
    (Literal["problem", "source"], "data", "curriculum.by"),
    (Count | None, "data", "curriculum.retire"),
    (Interval | None, "data", "curriculum.keep"),
    (Text | None, "data", "curriculum.pass_rates"),
    (Literal["grpo", "rloo", "reinforce_plus_plus_baseline", "gae"], "recipe", "advantage"),
    (Aggregation, "recipe", "loss_aggregation"),
    (Literal["vanilla", "retool", "gspo", "cispo", "sequence_clip"], "recipe", "policy_loss"),
    (Natural, "recipe", "overlong_buffer critic.warmup_steps"),
    (Finite | None, "recipe", "right_from"),
    (Share, "recipe", "gamma lambda filters.repetition.limit"),
    (Rate, "recipe", "lr"),
    (PositiveShare, "recipe", "clip_low"),
    (Positive, "recipe", "clip_high critic.value_clip temperature"),
    (Positive | None, "recipe", "loss_scale"),
    (AboveOne | None, "recipe", "dual_clip"),
    (NotNegative, "recipe", "kl_coefficient observation_weight"),
    (Count, "recipe", "max_turns filters.refill_limit"),
    (Interval | None, "recipe", "filters.accuracy"),
    (PowerOfTwo, "recipe", "filters.repetition.n"),
    (Literal["text", "hermes", "none"], "rollout", "format"),
    (Count, "rollout", "max_prompt_tokens max_response_tokens max_turn_tokens max_turns"),
    (Count | None, "rollout", "live"),
    (Observation, "rollout", "max_observation_tokens"),
    (Count | None, "rollout", "max_observation_chars"),
    (Count, "rollout", "error_lines"),
    (Literal["end", "text"], "rollout", "after_last_call"),
    (Share, "rollout", "sandbox_errors"),
    (Positive, "rollout", "temperature"),
    (PositiveShare, "rollout", "top_p"),
    (Literal["local", "fusion", "pool"], "sandbox", "kind"),
    (Positive, "sandbox", "timeout_s patience_s"),
    (Mebibytes, "sandbox", "memory_mb"),
    (Count, "sandbox", "max_output_bytes concurrency"),
    (Count | None, "sandbox", "workers"),
    (Literal["none", "process", "landlock", "namespaces"], "sandbox", "min_isolation"),
    (Texts, "sandbox", "preload"),
    (Texts, "data", "file.keep"),
    (Count, "train", "batch mini_batch epochs max_length eval_samples keep_checkpoints"),
    (Count | None, "train", "steps stop_after_worse text_every"),
    (Group, "train", "n"),
    (Natural, "train", "warmup_steps verify_push_every text_samples keep_trajectory_bytes"),
    (Rate, "train", "lr"),
    (PartialShare, "train", "min_lr"),
    (NotNegative, "train", "weight_decay"),
    (Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"], "train", "schedule"),
    (Every, "train", "save_every eval_every"),
    (Positive | None, "train", "save_minutes"),
    (Positive, "train", "eval_share"),
    (Best | None, "train", "keep_best"),
    (Sets, "train", "eval_sets"),
    (Count, "train", "evaluation.samples"),
    (Positive, "train", "evaluation.temperature"),
    (PositiveShare, "train", "evaluation.top_p"),
    (Literal["highest", "lowest"], "train", "best_is"),
    (Loggers, "train", "loggers"),
    (Literal["sync", "colocate_async", "separate_async"], "pipeline", "mode"),
    (Count, "pipeline", "updates"),
    (Natural, "pipeline", "staleness rollout_nodes rollout_gpus"),
    (Literal["token", "sequence"] | None, "correction", "rollout_is"),
    (Count, "correction", "log_probs_every"),
    (Literal["naive", "host", "nccl"], "pipeline", "transport"),
    (Natural, "alarms", "backs"),
    (Reply, "alarms", "nan.answer nan.then gradient_norm.answer gradient_norm.then entropy.answer entropy.then"),
    (Reply, "alarms", "mismatch.answer mismatch.then"),
    # Known only after the step's weights are saved and measured: nothing is left to skip or to go back to.
    (Literal["ignore", "tell", "stop"], "alarms", "reward.answer reward.then"),
    (Count, "alarms", "nan.in_a_row gradient_norm.in_a_row entropy.in_a_row mismatch.in_a_row reward.in_a_row"),
    (Norms, "alarms", "gradient_norm.window"),
    (Count, "alarms", "reward.validations"),
    (AboveOne, "alarms", "gradient_norm.factor"),
    (Share, "alarms", "entropy.share"),
    (Positive, "alarms", "mismatch.bound reward.sigmas"),
    (Literal["none", "mlflow"], "trace", "backend"),
    (Count | None, "trace", "prompts"),
    (Literal["vllm"], "verl.actor_rollout_ref.rollout", "name"),
    (Literal[False], "verl", "actor_rollout_ref.actor.checkpoint.async_save critic.checkpoint.async_save"),
    (Positive, "recipe", "critic.lr"),  # follows train.lr, whose message comes first
)
