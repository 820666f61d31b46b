"""The function that verl's reward workers call for every trajectory."""

from collections.abc import Mapping

from omegaconf import OmegaConf

from retool_mcore.recipes.sample_filters import drop_reason
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.sample import read_sample
from retool_mcore.rewards.shaping import soft_overlong
from retool_mcore.rewards.verdict import verdict


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
        graded_by    the part of the grader that decided (`Grader.counters`), "" where nothing was compared
        verifier_failed   1.0 when the grader gave up instead of deciding
    """
    judged = verdict(
        policy_text=extra_info["policy_text"],
        text=solution_str,
        ground_truth=ground_truth,
        policy=recipe["answer"],
        tested=extra_info.get("verdict"),
    )
    sample = read_sample(
        extra_info["trajectory"],
        text=solution_str,
        acc=judged["acc"],
        ground_truth=str(ground_truth),
        step=int(extra_info["training_step"]),
    )
    reward, filters = recipe["reward"], recipe["filters"]
    overlong = 0.0
    if recipe["overlong_buffer"] > 0:
        overlong = soft_overlong(extra_info["response_length"], max_response_tokens, recipe["overlong_buffer"])
    return {
        "score": find_reward(reward["name"])(sample, **to_dict(reward["args"])) + overlong,
        "acc": judged["acc"],
        "pred": judged["pred"],
        "overlong": overlong,
        "drop": drop_reason(sample, filters["samples"], {"repetition": filters["repetition"]}),
        "graded_by": judged["graded_by"],
        "verifier_failed": judged["verifier_failed"],
    }


def to_dict(section: Mapping) -> dict:
    """Keyword arguments from a section of the configuration, which in the workers is OmegaConf's."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else dict(section)
