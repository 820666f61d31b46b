"""Function calls that a policy wrote, and Tool-N1's reward for them (arXiv 2505.00024)."""

from collections.abc import Iterator, Mapping
from typing import Any

from retool_mcore.data.blocks import call_blocks
from retool_mcore.data.call_forms import block_values, read_calls, without_fence
from retool_mcore.data.untrusted import canonical_json, json_or_none
from retool_mcore.errors import UserError
from retool_mcore.rewards.call_truth import read_truth
from retool_mcore.rewards.sample import Sample

UNREAD = "unread"  # `graded_by` of a response with a call block in a form that is not read


def parse_calls(text: str, lines: bool = False) -> list[dict] | None:
    """Return the calls of all `<tool_call>` blocks of `text`, each a JSON list of calls, or with `lines` a call a line.

    [] without any block; None when one holds anything else, or when the last is never closed.
    """
    calls: list[dict] = []
    for body in _bodies(text):
        parsed = None if body is None else parse_lines(body) if lines else _listed(body)
        if parsed is None:
            return None
        calls += parsed
    return calls


def written_calls(text: str) -> list[dict] | None:
    """Return the calls of all `<tool_call>` blocks of `text`, in any form that is read (data/call_forms.py).

    [] without any block; None when one holds anything else, or when the last is never closed.
    """
    calls: list[dict] = []
    for body in _bodies(text):
        if body is None:
            return None
        try:
            calls += read_calls(block_values(body))
        except ValueError:
            return None
    return calls


def _bodies(text: str) -> Iterator[str | None]:
    """Yield what each closed `<tool_call>` block holds, and None for a last block that is never closed."""
    block = None
    for block in call_blocks(text):
        if block.closed:
            yield block.body
    if block is not None and not block.closed:
        yield None


def parse_lines(block: str) -> list[dict] | None:
    """Return the calls that a block holds, one JSON object a line; None when any line is something else."""
    return _calls(json_or_none(without_fence(block), lines=True))


def _listed(block: str) -> list[dict] | None:
    return _calls(json_or_none(without_fence(block)))


def _calls(values: Any) -> list[dict] | None:
    try:
        return read_calls(values) if isinstance(values, list) else None
    except ValueError:
        return None


def first_thought(text: str) -> str | None:
    """Return the content of the first `<think>...</think>` of `text`; None without one."""
    _, opened, rest = text.partition("<think>")
    thought, closed, _ = rest.partition("</think>")
    return thought if opened and closed else None


def thought_of(sample: Sample) -> str | None:
    """Return what the policy thought, in a block that it or its chat template opened; None without a closed one."""
    own = first_thought(sample.text) if "</think>" in sample.prefill else None
    return first_thought(sample.prefill + sample.text) if own is None else own


def judge(text: str, ground_truth: str) -> dict:
    """Right iff the calls of `text` are the ground truth's, in any order; fields as `math.score`'s.

    `graded_by` is UNREAD where a block holds a form of calls that is not read: it counts as wrong, also where no call
    is right.
    """
    calls = written_calls(text)
    correct = read_truth(ground_truth).is_met_by(calls)
    pred = canonical_json(calls) if calls else ""
    return {
        "score": 1.0 if correct else -1.0,
        "acc": float(correct),
        "pred": pred,
        "graded_by": UNREAD if calls is None else "",
    }


def tool_n1(sample: Sample, *, lines: bool = False) -> float:
    """1 iff the format is right and the calls are the ground truth's in any order, else 0 (arXiv 2505.00024).

    Right format: `<think>...</think>`, whose beginning the template may write (`Sample.prefill`), and `<tool_call>`
    blocks that each hold a list of calls (`lines`: a call a line), none where no call is right. All blocks count.
    """
    calls = parse_calls(sample.text, lines)
    if calls is None or thought_of(sample) is None:
        return 0.0
    return float(read_truth(sample.ground_truth).is_met_by(calls))


def check_tool_n1(config: Mapping, **args) -> None:
    """Refuse a recipe whose ground truths are no calls. Raises UserError."""
    recipe = config["recipe"]
    if recipe["answer"] != "calls":
        raise UserError(
            f"recipe.reward.name={recipe['reward']['name']} compares function calls, and with recipe.answer="
            f"{recipe['answer']} the ground truths are none: set recipe.answer=calls, or take another reward."
        )
