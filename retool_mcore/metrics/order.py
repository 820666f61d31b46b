"""Whether the mini-batches of a step say anything about its trajectories: they must not."""

from collections.abc import Mapping, Sequence

from scipy.stats import spearmanr


def order_correlation(numbers: Sequence[int], records: Sequence[Mapping]) -> dict[str, float]:
    """Spearman's correlation of the mini-batch's number with a trajectory's tokens, calls and time of its end.

    Without a suffix the largest of the three in magnitude. By chance alone their standard deviation is
    1 / sqrt(trajectories - 1). {} for a step of one mini-batch; 0 where all values are equal.
    """
    if len(set(numbers)) < 2:
        return {}
    columns = {
        "tokens": [len(record["response_ids"]) for record in records],
        "calls": [len(record["calls"]) for record in records],
        "finished": [record["started"] + record["generate_s"] + record["tool_s"] for record in records],
    }
    apart = {name: values for name, values in columns.items() if len(set(values)) > 1}
    correlations = dict.fromkeys(columns, 0.0) | {
        name: float(spearmanr(numbers, v).statistic) for name, v in apart.items()
    }
    return {"batch/order_correlation": max(correlations.values(), key=abs)} | {
        f"batch/order_correlation/{name}": value for name, value in correlations.items()
    }
