"""The outcome of every trajectory, as the judges compute it: the recipe's reward, the verdict, why it is left out."""

import gc
import logging
from collections.abc import Mapping

from retool_mcore.errors import UserError
from retool_mcore.recipes.sample_filters import drop_reason
from retool_mcore.rewards.sample import of_row, read_sample
from retool_mcore.rewards.scoring import crashed, score
from retool_mcore.rewards.shaping import soft_overlong
from retool_mcore.rewards.verdict import CRASHED

log = logging.getLogger(__name__)
gc.freeze()  # JSON of a megabyte sets off a full collection, which held all threads while it read every library


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict,
    recipe: Mapping,
    max_response_tokens: int,
) -> dict:
    """Reward of one trajectory, by the recipe's section of the configuration.

    The grader reads what the policy itself wrote outside its code, extra_info["policy_text"], because `solution_str`,
    the decoded response, contains interpreter output. Returns

        score    the recipe's reward plus the overlong punishment (DAPO, arXiv 2503.14476, Eq. 13)
        acc      1.0 or 0.0, whether it counts as right (rewards/scoring.py); pred: the answer that was read
        overlong the punishment alone, in [-1, 0]
        drop     why the sample is left out of the loss, "" when it is not
        graded_by    what decided (`rewards/math.py::score`), "" where nothing was compared, "crashed" where scoring
                     raised
        error    what scoring raised and where (errors.py::describe), "" where it did not

    A response that makes scoring raise is worth what an empty one is, and at most 0: were its group replaced, a policy
    could void what it does badly. So is one whose reward is no finite number. UserError says that the run is set up
    wrongly, and goes through.
    """
    step, truth = int(extra_info["training_step"]), str(ground_truth)
    texts = {"text": solution_str, "policy_text": extra_info["policy_text"], "prefill": extra_info.get("prefill", "")}
    row = of_row(data_source, extra_info)
    sample = read_sample(extra_info["trajectory"], **texts, **row, acc=0.0, ground_truth=truth, step=step)
    overlong, drop, error = 0.0, "", str(extra_info.get("scoring_error", ""))
    try:
        scored = score(sample, recipe, extra_info.get("verdict"))
        filters = recipe["filters"]
        drop = drop_reason(scored.sample, filters["samples"], {"repetition": filters["repetition"]})
        if recipe["overlong_buffer"] > 0:
            overlong = soft_overlong(extra_info["response_length"], max_response_tokens, recipe["overlong_buffer"])
    except UserError:
        raise
    except Exception as raised:
        log.exception("scoring raised: counted as %s", CRASHED)
        scored, drop = crashed(sample, recipe, raised), ""
        error = scored.error
    return {
        "score": scored.reward + overlong,
        "acc": scored.acc,
        "pred": scored.pred,
        "overlong": overlong,
        "drop": drop,
        "graded_by": scored.graded_by,
        "error": error,
    }
