"""Function calls that a policy wrote, and Tool-N1's reward for them (arXiv 2505.00024)."""

import json
import re
from collections import Counter
from collections.abc import Sequence

from retool_mcore.errors import UserError
from retool_mcore.reward.sample import Sample

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_CALLS = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)


def parse_calls(text: str) -> list[dict] | None:
    """The calls of the last `<tool_call>...</tool_call>` in `text`: a JSON list of {"name", "arguments"}.

    None when there is no such block, or when what it holds is anything else.
    """
    blocks = _CALLS.findall(text)
    if not blocks:
        return None
    try:
        calls = json.loads(blocks[-1])
    except (ValueError, RecursionError):
        return None
    return calls if is_calls(calls) else None


def is_calls(calls) -> bool:
    """Whether `calls` is a list of {"name": str, "arguments": dict}, nothing more and nothing less."""
    return isinstance(calls, list) and all(
        isinstance(call, dict)
        and call.keys() == {"name", "arguments"}
        and isinstance(call["name"], str)
        and isinstance(call["arguments"], dict)
        for call in calls
    )


def read_truth(ground_truth: str) -> list[dict]:
    """The ground truth's calls, a JSON list as text. Raises UserError when it is none: no reward could be right."""
    try:
        calls = json.loads(ground_truth)
    except (ValueError, TypeError):
        calls = None
    if not is_calls(calls):
        raise UserError(
            f"reward_model.ground_truth must be a JSON list of {{name, arguments}}, got {str(ground_truth)[:80]!r}. "
            "Prepare the data set again."
        )
    return calls


def as_multiset(calls: Sequence[dict]) -> Counter:
    """Calls as a multiset of (name, arguments as JSON with sorted keys): neither the order of calls nor of keys counts.

    `True` and `1` are different arguments, as they are in JSON.
    """
    return Counter((call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in calls)


def tool_n1(sample: Sample) -> float:
    """1 iff the format is right and the calls are the ground truth's as a multiset, else 0 (arXiv 2505.00024).

    Right format: `<think>...</think>`, and a last `<tool_call>` that holds a list of calls.
    """
    calls = parse_calls(sample.text)
    if calls is None or not _THOUGHT.search(sample.text):
        return 0.0
    return float(as_multiset(calls) == as_multiset(read_truth(sample.ground_truth)))
