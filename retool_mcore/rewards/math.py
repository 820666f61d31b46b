"""ReTool's reward: +1 when the final answer is equivalent to the ground truth, else -1 (arXiv 2504.11536).

The paper leaves code executability out of the reward on purpose, and so does this."""

from retool_mcore.errors import UserError
from retool_mcore.rewards.answer import extract
from retool_mcore.rewards.equivalence import decide_once
from retool_mcore.rewards.grader.copied import copied

COPIED = "copied"  # `graded_by` of an answer that hands the question back


def score(
    policy_text: str, ground_truth: str, policy: str = "boxed", rounded: bool = False, question: str = ""
) -> dict:
    """Reward of one response.

    policy_text: what the policy wrote, without code blocks and observations (`rollout/trajectory.py::answer_text`).
    policy: how the answer is found in it, one of `answer.POLICIES`.
    rounded: whether decimals may stand for exact values (`recipe.decimals`).
    question: the row's, where an answer that stands in it in another form than the truth's counts as wrong
    (`recipe.copied_answers`); "" where it counts.
    Returns {"score": 1.0 or -1.0, "acc": 1.0 or 0.0, "pred": the answer, "" without one, "graded_by": what decided
    (`equivalence.decide_once`), "copied" for an answer of the question's own, "" where nothing was compared}.
    Raises UserError when the ground truth is not a non-empty string: no answer could ever be right.
    """
    if not isinstance(ground_truth, str) or not ground_truth.strip():
        message = f"must be a non-empty string, got {ground_truth!r}. Prepare the data set again"
        raise UserError(f"reward_model.ground_truth {message}.")
    pred = extract(policy_text, policy) or ""
    correct, by = decide_once(pred, ground_truth, rounded) if pred else (False, "")
    if correct and question and copied(pred, ground_truth, question):
        correct, by = False, COPIED
    return {"score": 1.0 if correct else -1.0, "acc": float(correct), "pred": pred, "graded_by": by}
