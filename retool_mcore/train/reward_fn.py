"""The function that verl's reward workers call for every trajectory."""

from collections.abc import Mapping

from omegaconf import OmegaConf

from retool_mcore.algo.sample_filters import drop_reason
from retool_mcore.reward.math import score
from retool_mcore.reward.named import find_reward
from retool_mcore.reward.sample import read_sample
from retool_mcore.reward.shaping import soft_overlong


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict,
    recipe: Mapping,
    max_response_tokens: int,
    **kwargs,
) -> dict:
    """Reward of one trajectory, by the recipe's section of the configuration.

    The grader reads what the policy itself wrote outside its code, extra_info["policy_text"], because `solution_str`,
    the decoded response, contains interpreter output. Returns

        score    the recipe's reward plus the overlong punishment (DAPO, arXiv 2503.14476, Eq. 13)
        acc      1.0 or 0.0, the grader's verdict; pred: the answer that it read
        overlong the punishment alone, in [-1, 0]
        drop     why the sample is left out of the loss, "" when it is not
        verifier_failed   1.0 when the grader gave up instead of deciding
    """
    verdict = score(extra_info["policy_text"], ground_truth, recipe["answer"])
    sample = read_sample(
        extra_info["trajectory"], text=solution_str, acc=verdict["acc"], ground_truth=str(ground_truth)
    )
    reward, filters = recipe["reward"], recipe["filters"]
    overlong = 0.0
    if recipe["overlong_buffer"] > 0:
        overlong = soft_overlong(extra_info["response_length"], max_response_tokens, recipe["overlong_buffer"])
    return {
        "score": find_reward(reward["name"])(sample, **plain(reward["args"])) + overlong,
        "acc": verdict["acc"],
        "pred": verdict["pred"],
        "overlong": overlong,
        "drop": drop_reason(sample, filters["samples"], {"repetition": filters["repetition"]}),
        "verifier_failed": float(verdict.get("verifier_failed", 0.0)),
    }


def plain(section: Mapping) -> dict:
    """Keyword arguments from a section of the configuration, which in the workers is OmegaConf's."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else dict(section)
