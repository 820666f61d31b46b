"""The function that verl's reward workers call for every trajectory."""

import gc
import logging
from collections.abc import Mapping
from dataclasses import replace

from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.recipes.sample_filters import drop_reason
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.sample import Sample, read_sample
from retool_mcore.rewards.shaping import soft_overlong
from retool_mcore.rewards.verdict import CRASHED, ENVIRONMENT, verdict

log = logging.getLogger(__name__)
gc.freeze()  # JSON of a megabyte sets off a full collection, which held all threads while it read every library


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
        graded_by    what decided (`equivalence.decide_once`), "" where nothing was compared, "crashed" where scoring
                     raised

    A response that makes scoring raise is worth what an empty one is, and at most 0: were its group replaced, as verl
    does, a policy could void what it does badly. UserError says that the run is set up wrongly, and goes through.
    """
    step, truth = int(extra_info["training_step"]), str(ground_truth)
    said = {"text": solution_str, "policy_text": extra_info["policy_text"], "prefill": extra_info.get("prefill", "")}
    sample = read_sample(extra_info["trajectory"], **said, acc=0.0, ground_truth=truth, step=step)
    known = {"ground_truth": ground_truth, "policy": recipe["answer"], "decimals": recipe["decimals"]}
    try:
        tested = extra_info.get("verdict")
        if recipe["answer"] == ENVIRONMENT:  # what its reward says
            tested = float(_reward(sample, recipe)[0] >= 1)
        judged = verdict(policy_text=extra_info["policy_text"], text=solution_str, tested=tested, **known)
        reward, drop = _reward(replace(sample, acc=judged["acc"]), recipe)
    except UserError:
        raise
    except Exception:
        log.exception("scoring raised: counted as %s", CRASHED)
        judged = verdict(policy_text="", text="", tested=0.0, **known) | {"graded_by": CRASHED}
        nothing = replace(sample, text="", policy_text="", prefill="", ids=[], policy_spans=[], turns=[], calls=[])
        reward, drop = min(_reward(nothing, recipe)[0], 0.0), ""
    overlong = 0.0
    if recipe["overlong_buffer"] > 0:
        overlong = soft_overlong(extra_info["response_length"], max_response_tokens, recipe["overlong_buffer"])
    return {
        "score": reward + overlong,
        "acc": judged["acc"],
        "pred": judged["pred"],
        "overlong": overlong,
        "drop": drop,
        "graded_by": judged["graded_by"],
    }


def _reward(sample: Sample, recipe: Mapping) -> tuple[float, str]:
    reward, filters = recipe["reward"], recipe["filters"]
    drop = drop_reason(sample, filters["samples"], {"repetition": filters["repetition"]})
    return find_reward(reward["name"])(sample, **to_dict(reward["args"])), drop


def to_dict(section: Mapping) -> dict:
    """Keyword arguments from a section of the configuration, which in the workers is OmegaConf's."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else dict(section)
