"""The function that verl's reward workers call for every trajectory."""

import gc
import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace

from omegaconf import OmegaConf

from retool_mcore.errors import UserError, describe
from retool_mcore.recipes.sample_filters import drop_reason
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.sample import Sample, read_sample
from retool_mcore.rewards.shaping import soft_overlong
from retool_mcore.rewards.value import number
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
        graded_by    what decided (`rewards/math.py::score`), "" where nothing was compared, "crashed" where scoring
                     raised
        error    what scoring raised and where (errors.py::describe), "" where it did not

    A response that makes scoring raise is worth what an empty one is, and at most 0: were its group replaced, as verl
    does, a policy could void what it does badly. So is one whose reward is no finite number. UserError says that the
    run is set up wrongly, and goes through.
    """
    step, truth = int(extra_info["training_step"]), str(ground_truth)
    said = {"text": solution_str, "policy_text": extra_info["policy_text"], "prefill": extra_info.get("prefill", "")}
    sample = read_sample(extra_info["trajectory"], **said, acc=0.0, ground_truth=truth, step=step)
    known = {"ground_truth": ground_truth, "policy": recipe["answer"], "decimals": recipe["decimals"]}
    if recipe["copied_answers"] == "wrong":
        known["question"] = str(extra_info.get("question") or "")
    error, overlong = str(extra_info.get("scoring_error", "")), 0.0
    try:
        tested = extra_info.get("verdict")
        if recipe["answer"] == ENVIRONMENT:  # what its reward says
            tested = float(_reward(sample, recipe) >= 1)
        judged = verdict(policy_text=extra_info["policy_text"], text=solution_str, tested=tested, **known)
        graded = replace(sample, acc=judged["acc"])
        filters = recipe["filters"]
        drop = drop_reason(graded, filters["samples"], {"repetition": filters["repetition"]})
        reward = _reward(graded, recipe)
        if recipe["overlong_buffer"] > 0:
            overlong = soft_overlong(extra_info["response_length"], max_response_tokens, recipe["overlong_buffer"])
    except UserError:
        raise
    except Exception as raised:
        log.exception("scoring raised: counted as %s", CRASHED)
        error = describe(raised)
        judged = verdict(policy_text="", text="", tested=0.0, **known) | {"graded_by": CRASHED}
        reward, drop = _worth_of_nothing(sample, recipe), ""
    return {
        "score": reward + overlong,
        "acc": judged["acc"],
        "pred": judged["pred"],
        "overlong": overlong,
        "drop": drop,
        "graded_by": judged["graded_by"],
        "error": error,
    }


def _reward(sample: Sample, recipe: Mapping) -> float:
    """Return the recipe's reward. Raises ValueError where the function returns no finite number."""
    name, function = recipe["reward"]["name"], find_reward(recipe["reward"]["name"])
    returned = function(sample, **to_dict(recipe["reward"]["args"]))
    try:
        return number(returned, f"the reward {name}")
    except ValueError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}' if code else ""
        error.traceback_str = place  # type: ignore[attr-defined]  # `describe` names the function, not this check
        raise


def _worth_of_nothing(sample: Sample, recipe: Mapping) -> float:
    """Return what an empty response is worth, at most 0; 0 where the reward raises for it as well."""
    nothing = replace(sample, text="", policy_text="", prefill="", ids=[], policy_spans=[], turns=[], calls=[])
    try:
        return min(_reward(nothing, recipe), 0.0)
    except Exception:
        return 0.0


def to_dict(section: Mapping) -> dict:
    """Keyword arguments from a section of the configuration, which in the workers is OmegaConf's."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else dict(section)
