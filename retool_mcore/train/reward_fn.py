"""The function that verl's reward workers call for every trajectory."""

from retool_mcore.reward.math import score
from retool_mcore.reward.shaping import soft_overlong


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict,
    overlong_buffer: int = 0,
    max_response_tokens: int = 0,
    **kwargs,
) -> dict:
    """Reward of one trajectory: {"score": float, "acc": float, "pred": str}.

    `solution_str`, the decoded response, is not read: it contains interpreter output. What the policy itself wrote
    outside its code arrives from the agent loop as extra_info["policy_text"]. With `overlong_buffer` > 0 the DAPO
    punishment (arXiv 2503.14476, Eq. 13) is added to the score; "acc" stays the answer's.
    """
    result = score(extra_info["policy_text"], ground_truth)
    if overlong_buffer > 0:
        result["score"] += soft_overlong(extra_info["response_length"], max_response_tokens, overlong_buffer)
    return result
