"""Is a response right? By its final answer, by function calls that are its answer, or by tests of its environment."""

import math

from retool_mcore.errors import UserError
from retool_mcore.rewards.answer import POLICIES, extract
from retool_mcore.rewards.math import score
from retool_mcore.rewards.tool_calls import judge

CALLS = "calls"
TESTS = "tests"
ENVIRONMENT = "environment"
DECIMALS = ("exact", "rounded")
COPIES = ("wrong", "right")
ANSWERS = (*POLICIES, CALLS, TESTS, ENVIRONMENT)
CRASHED = "crashed"  # `graded_by` of a response that made the scoring raise


def verdict(
    *, policy_text: str, text: str, ground_truth: str, policy: str, decimals: str = "exact",
    tested: float | None = None, compared: bool = True, question: str = "",
) -> dict:  # fmt: skip
    """{"score", "acc", "pred", "graded_by"} of one response, as `math.score` and `tool_calls.judge`.

    policy: where the answer stands, one of ANSWERS. policy_text: what the policy wrote, without code and observations;
    text: the decoded response; decimals: one of DECIMALS, whether a decimal stands for the exact value; tested: what
    the tests of the trajectory's environment came to, 1.0 iff all pass; compared: whether there is a ground truth to
    compare the answer with, which is only read where there is none; question: the row's, where an answer that only
    hands its formula back is wrong (`recipe.copied_answers`), else "". Raises UserError for a ground truth that no
    answer could meet, and for tests where there was no environment. A `tested` that is not a number says that running
    them raised.
    """
    if policy in (TESTS, ENVIRONMENT):
        if tested is None:
            raise UserError("answer=tests needs trajectories in an environment with tests: take data=repo_bugs.")
        passed, by = (0.0, CRASHED) if math.isnan(tested) else (tested, "")
        return {"score": passed, "acc": passed, "pred": "", "graded_by": by}
    if not compared:
        pred = extract(policy_text, policy) if policy in POLICIES else None
        return {"score": 0.0, "acc": 0.0, "pred": pred or "", "graded_by": ""}
    if policy == CALLS:
        return judge(text, ground_truth)
    return score(policy_text, ground_truth, policy, rounded=decimals == "rounded", question=question)
