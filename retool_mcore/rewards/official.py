"""Rewards that are other packages' own verdicts: reasoning-gym, the Berkeley leaderboard (BFCL), HumanEval.

Each grader runs in a sandbox (retool_mcore/official): all three evaluate or execute what a policy wrote. A score counts
only if it is the official maximum, since partial scores pay for answers that hold the right one among other words.
"""

import re
from collections.abc import Mapping
from typing import Any

from retool_mcore.data.blocks import call_blocks
from retool_mcore.errors import UserError
from retool_mcore.official.graders import BFCL, HUMAN_EVAL, REASONING_GYM
from retool_mcore.rewards.sample import Sample
from retool_mcore.rewards.tool_calls import written_calls

_FENCE = re.compile(
    r"^[ \t]*+```[ \t]*+(?:python|py)?[ \t]*+\n(.*?)^[ \t]*+```", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_THOUGHT_ENDS = "</think>"


def reasoning_gym(
    sample: Sample, *, partial: bool = False, timeout_s: float = 10.0, min_isolation: str | None = None
) -> float:
    """reasoning-gym's score of the answer: 1 if it is exactly 1, else 0.

    partial: pay scores between 0 and 1 as they are. timeout_s: of one score; an answer that needs longer, or more
    memory than the grader has, is worth 0. min_isolation: as sandbox.min_isolation, for the grader alone.
    """
    row = _row(sample, "reasoning_gym", "family", "entry")
    if not sample.pred:
        return 0.0
    asked = {"family": row["family"], "entry": row["entry"], "answer": sample.pred}
    score = REASONING_GYM.ask("score", timeout_s, min_isolation=min_isolation, **asked) or 0.0
    return min(max(score, 0.0), 1.0) if partial else float(score == 1.0)


def bfcl(sample: Sample, *, timeout_s: float = 10.0, min_isolation: str | None = None) -> float:
    """1 if the leaderboard's checker accepts the calls, else 0; where no call is right, 1 if there is none.

    Calls stand in `<tool_call>` blocks as JSON; an answer without such a block is read by the leaderboard's own
    decoder, as calls in Python. A block that cannot be read is worth 0, also where no call is right.
    """
    row = _row(sample, "bfcl", "category", "function", "possible_answer")
    text = sample.text.rpartition(_THOUGHT_ENDS)[2]
    has_blocks = any(True for _ in call_blocks(text))
    calls = written_calls(text) if has_blocks else None
    if has_blocks and calls is None:
        return 0.0
    asked = {name: row[name] for name in ("category", "function", "possible_answer")} | {"calls": calls, "text": text}
    return float(BFCL.ask("score", timeout_s, min_isolation=min_isolation, **asked) == 1.0)


def human_eval(sample: Sample, *, timeout_s: float = 10.0, min_isolation: str | None = None) -> float:
    """1 if HumanEval's tests pass, else 0.

    The program is the last fenced block outside of the policy's calls, or all that it wrote there: the whole function,
    or what follows the prompt. timeout_s: of the tests and of the start of an interpreter.
    """
    row = _row(sample, "human_eval", "prompt", "test", "entry_point")
    written = sample.policy_text.rpartition(_THOUGHT_ENDS)[2]
    asked = {name: row[name] for name in ("prompt", "test", "entry_point")}
    asked["program"] = whole_program(row["prompt"], written, row["entry_point"])
    return float(HUMAN_EVAL.ask("score", timeout_s, min_isolation=min_isolation, **asked) == 1.0)


def whole_program(prompt: str, written: str, entry_point: str) -> str:
    """Return the program that an answer to a prompt of HumanEval is taken for.

    A block that defines the function stands behind the prompt, whose imports and other functions it may use; anything
    else goes on where the prompt ends.
    """
    blocks = _FENCE.findall(written if written.endswith("\n") else written + "\n")
    code = blocks[-1] if blocks else written
    if re.search(rf"^(?:async[ ]+)?def[ ]+{re.escape(entry_point)}\b", code, re.MULTILINE):
        return f"{prompt}\n    pass\n\n\n{code}"
    return prompt + code


def check_reasoning_gym(config: Mapping, **args: Any) -> None:
    """Refuse a run whose grader cannot be asked. Raises UserError."""
    REASONING_GYM.check()


def check_bfcl(config: Mapping, **args: Any) -> None:
    """Refuse a run whose grader cannot be asked. Raises UserError."""
    BFCL.check()


def check_human_eval(config: Mapping, **args: Any) -> None:
    """Refuse a run that could not read a program in the policy's text. Raises UserError."""
    if config["rollout"]["format"] == "text":
        raise UserError(
            "recipe.reward.name=human_eval reads the program that the policy writes as its answer, and with "
            "rollout.format=text programs are calls: set rollout.format=none, or hermes with the interpreter as a tool."
        )


def _row(sample: Sample, reward: str, *names: str) -> Mapping[str, Any]:
    """The row's columns. Raises UserError for a row of another data set."""
    if missing := [name for name in names if not isinstance(sample.extra.get(name), str)]:
        raise UserError(
            f"recipe.reward.name={reward} needs rows of data={reward}, which carry {', '.join(names)}; a row of "
            f"{sample.source or 'the data'} has no {missing[0]}."
        )
    return sample.extra


for _reward in (reasoning_gym, bfcl, human_eval):
    _reward.needs_answer = False  # type: ignore[attr-defined]  # the row carries what the grader compares with
    _reward.right_from = 1.0  # type: ignore[attr-defined]
