"""The kinds of values that fields of the configuration have: types with their ranges, and the words for them."""

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
Answer = Literal["boxed", "answer_tag", "final_line", "calls", "tests", "environment"]
Schedule = Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"]
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
