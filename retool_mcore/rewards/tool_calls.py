"""Function calls that a policy wrote, and Tool-N1's reward for them (arXiv 2505.00024)."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from retool_mcore.data.blocks import call_blocks
from retool_mcore.data.untrusted import canonical_json, json_or_none
from retool_mcore.errors import UserError
from retool_mcore.rewards.sample import Sample


def parse_calls(text: str, lines: bool = False) -> list[dict] | None:
    """The calls of the last `<tool_call>...</tool_call>` in `text`: a JSON list of {"name", "arguments"}, or `lines`.

    None when there is no such block, or when what it holds is anything else.
    """
    blocks = _blocks(text)
    if not blocks or lines:
        return parse_lines(blocks[-1]) if blocks else None
    calls = json_or_none(blocks[-1])
    return calls if is_calls(calls) else None


def written_calls(text: str) -> list[dict] | None:
    """The calls of all `<tool_call>` blocks of `text`, each a call, a list of calls, or a call a line; [] without any.

    None when a block holds anything else.
    """
    calls: list[dict] = []
    for block in _blocks(text):
        found = json_or_none(block)
        found = parse_lines(block) if found is None else found if isinstance(found, list) else [found]
        if not is_calls(found):
            return None
        calls += found
    return calls


def parse_lines(block: str) -> list[dict] | None:
    """Calls written one JSON object {"name", "arguments"} a line; None when any line is something else."""
    calls = json_or_none(block, lines=True)
    return calls if is_calls(calls) else None


def first_thought(text: str) -> str | None:
    """What the first `<think>...</think>` of `text` holds; None without one."""
    _, opened, rest = text.partition("<think>")
    thought, closed, _ = rest.partition("</think>")
    return thought if opened and closed else None


def thought_of(sample: Sample) -> str | None:
    """Return what the policy thought, in a block that it or its chat template opened; None without a closed one."""
    own = first_thought(sample.text) if "</think>" in sample.prefill else None
    return first_thought(sample.prefill + sample.text) if own is None else own


def _blocks(text: str) -> list[str]:
    """Return what each closed `<tool_call>` block holds."""
    return [block.body for block in call_blocks(text) if block.closed]


def judge(text: str, ground_truth: str) -> dict:
    """Right iff the calls are the ground truth's as a multiset, however they are written; fields as `math.score`'s."""
    calls = written_calls(text)
    correct = calls is not None and as_multiset(calls) == as_multiset(read_truth(ground_truth))
    pred = canonical_json(calls) if calls else ""
    return {"score": 1.0 if correct else -1.0, "acc": float(correct), "pred": pred, "graded_by": ""}


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
    """Return the calls as a multiset of (name, arguments), whatever their order and spelling (`canonical_json`)."""
    return Counter((call["name"], canonical_json(call["arguments"])) for call in calls)


def tool_n1(sample: Sample, *, lines: bool = False) -> float:
    """1 iff the format is right and the calls are the ground truth's as a multiset, else 0 (arXiv 2505.00024).

    Right format: `<think>...</think>`, whose beginning the template may write (`Sample.prefill`), and a last
    `<tool_call>` that holds a list of calls; `lines`: a call a line.
    """
    calls = parse_calls(sample.text, lines)
    if calls is None or thought_of(sample) is None:
        return 0.0
    return float(as_multiset(calls) == as_multiset(read_truth(sample.ground_truth)))


def check_tool_n1(config: Mapping, **args) -> None:
    """Refuse a recipe whose ground truths are no calls. Raises UserError."""
    recipe = config["recipe"]
    if recipe["answer"] != "calls":
        raise UserError(
            f"recipe.reward.name={recipe['reward']['name']} compares function calls, and with recipe.answer="
            f"{recipe['answer']} the ground truths are none: set recipe.answer=calls, or take another reward."
        )
