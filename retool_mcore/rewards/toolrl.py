"""ToolRL (arXiv 2504.13958): format plus a fine-grained correctness of function calls, and the paper's variants."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from retool_mcore.errors import UserError
from retool_mcore.rewards.call_truth import RightCall, Truth, read_truth
from retool_mcore.rewards.sample import Sample
from retool_mcore.rewards.tool_calls import check_tool_n1, parse_calls, parse_lines, thought_of

Granularity = Literal["fine", "intermediate", "coarse"]

_CALLS_FOLLOW = re.compile(r"</think>\s*+<tool_call>")
_END = "</tool_call>"


def jaccard(first: Iterable[Hashable], second: Iterable[Hashable], refined: bool = False) -> float:
    """Multiset Jaccard similarity, in [0, 1]; 1 for two empty multisets. `refined`: 1 when equal, else 0."""
    a, b = Counter(first), Counter(second)
    if a == b or refined:
        return float(a == b)
    return sum((a & b).values()) / sum((a | b).values())


def match_score(
    predicted: Sequence[dict],
    truth: Sequence[RightCall],
    *,
    granularity: Granularity = "fine",
    refined: bool = False,
) -> tuple[float, float]:
    """(S, S_max) of the paper (Sec. 3.3).

        S = J(names) + sum over ground-truth calls, each with the best unmatched predicted call of the same name,
            of [J(parameter names) + number of equal values]
        S_max = 1 + sum over ground-truth calls of (1 + number of parameters)

    Of a ground-truth call with optional parameters those count that the predicted call has. "intermediate" (Sec. 5.3):
    a call counts 1 when it is equal as a whole, else 0, so S_max = 1 + number of calls.
    `refined`: names and parameter names count only when they all agree.
    """
    score = jaccard([call.name for call in truth], [call["name"] for call in predicted], refined)
    best_possible = 1.0
    unmatched = list(predicted)
    for call in truth:
        same_name = [other for other in unmatched if other["name"] == call.name]
        scores = [_call_score(other, call, granularity, refined) for other in same_name]
        best = max(range(len(scores)), key=scores.__getitem__, default=None)
        names = call.names([] if best is None else same_name[best]["arguments"])
        best_possible += 1.0 if granularity == "intermediate" else 1.0 + len(names)
        if best is not None:
            score += scores[best]
            unmatched = [other for other in unmatched if other is not same_name[best]]
    return score, best_possible


def _call_score(predicted: dict, truth: RightCall, granularity: Granularity, refined: bool) -> float:
    if granularity == "intermediate":
        return float(truth.is_met_by(predicted))
    arguments = predicted["arguments"]
    names = truth.names(arguments)
    equal = sum(name in arguments and truth.takes(name, arguments[name]) for name in names)
    return jaccard(names, list(arguments), refined) + equal


def correctness(
    predicted: Sequence[dict] | None,
    truth: Truth,
    *,
    granularity: Granularity = "fine",
    refined: bool = False,
    maximum: float = 3.0,
) -> float:
    """r = 2R * S / S_max - R in [-R, R], R = `maximum` (Sec. 3.3; R = 3, or 1 in Sec. 5.2).

    Calls that are all equal give R, calls that could not be parsed (None) -R. "coarse", and where any call is right: R
    when they are right, else -R.
    """
    if predicted is None:
        return -maximum
    if granularity == "coarse" or truth.any_call:
        return maximum if truth.is_met_by(predicted) else -maximum
    score, best_possible = match_score(predicted, truth.calls, granularity=granularity, refined=refined)
    return 2 * maximum * score / best_possible - maximum


def scheduled_maxima(step: int, steps: int) -> tuple[float, float]:
    """(format's maximum, R) at a training step, the smooth dynamic scale (Sec. 5.2; end points of the released code).

    Linear over `steps` (the paper's 150), constant afterwards: the format's falls from 2 to 1, R rises from 2 to 3.
    """
    done = min(max(step, 0) / steps, 1.0)
    return 2.0 - done, 2.0 + done


def length_reward(thought_words: int, full_words: int = 512) -> float:
    """Words of the thought / `full_words`, at most 1 (Sec. 5.1)."""
    return min(thought_words / full_words, 1.0)


def toolrl(
    sample: Sample,
    *,
    granularity: Granularity = "fine",
    refined: bool = False,
    maximum: float = 3.0,
    schedule_steps: int | None = None,
    with_length: bool = False,
) -> float:
    """Format (0 or 1) plus correctness in [-maximum, maximum] (Sec. 3.3), plus the length reward if asked for.

    Variants: `granularity` and `refined` (Sec. 5.3), `maximum` 1 (5.2), `schedule_steps` for the scale that the
    training step moves, which then sets both maxima (5.2), `with_length` (5.1).
    Right format: `<think>...</think>` and then one `<tool_call>` that ends the text, with one JSON object a line; where
    no call is right, `<think>...</think>` and a text without such a block.
    """
    truth = read_truth(sample.ground_truth)
    called = _called(sample.prefill + sample.text)
    predicted = None if called is None else parse_lines(called)
    formatted = called is not None
    if truth.no_call and called is None and thought_of(sample) is not None and parse_calls(sample.text) == []:
        predicted, formatted = [], True
    format_maximum = 1.0
    if schedule_steps is not None:
        format_maximum, maximum = scheduled_maxima(sample.step, schedule_steps)
    graded = correctness(predicted, truth, granularity=granularity, refined=refined, maximum=maximum)
    reward = format_maximum * formatted + graded
    if with_length:
        reward += length_reward(len((thought_of(sample) or "").split()))
    return reward


def _called(text: str) -> str | None:
    """Return the text between the first `<tool_call>` right after a `</think>` and the end; None for another format."""
    text = text.strip()
    begins = _CALLS_FOLLOW.search(text) if text.startswith("<think>") and text.endswith(_END) else None
    # The end tag is not part of the opening one, so the two cannot overlap.
    return text[begins.end() : -len(_END)] if begins else None


def check_toolrl(config: Mapping, *, maximum: float = 3.0, schedule_steps: int | None = None, **args) -> None:
    """Refuse ground truths that are no calls, and scales that are none. Raises UserError."""
    check_tool_n1(config)
    for name, value in {"maximum": maximum, "schedule_steps": schedule_steps}.items():
        if value is not None and value <= 0:
            raise UserError(f"recipe.reward.args.{name}={value:g}: expected more than 0.")
