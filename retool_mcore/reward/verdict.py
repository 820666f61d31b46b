"""Is a response right? By its final answer, or by the function calls that are its answer."""

from retool_mcore.reward.answer import POLICIES
from retool_mcore.reward.math import score
from retool_mcore.reward.tool_calls import judge

CALLS = "calls"
ANSWERS = (*POLICIES, CALLS)


def verdict(*, policy_text: str, text: str, ground_truth: str, policy: str) -> dict:
    """{"score", "acc", "pred", "graded_by", "verifier_failed"} of one response, as `math.score` and `tool_calls.judge`.

    policy: where the answer stands, one of ANSWERS. policy_text: what the policy wrote, without code and observations;
    text: the decoded response. Raises UserError for a ground truth that no answer could meet.
    """
    return judge(text, ground_truth) if policy == CALLS else score(policy_text, ground_truth, policy)
