"""How old the policy was that wrote the tokens of a batch, in updates of the rollout engines' weights."""

import numpy as np


def token_staleness(batch, step: int, bound: int) -> dict[str, float]:
    """`staleness/mean`, `staleness/max` and `staleness/bound` of the batch (KVBatchMeta) that step `step` trained on.

    A trajectory's lag is step - 1 (the version that was trained on it) minus the oldest version that wrote any of it,
    so what was written by newer ones counts as old as the rest. The mean is weighted by response tokens. {} where the
    engine told no versions.
    """
    tags = [tag for tag in batch.tags if not tag.get("is_padding", False) and tag.get("min_global_steps") is not None]
    if not tags:
        return {}
    lags = np.array([step - 1 - int(tag["min_global_steps"]) for tag in tags], np.float64)
    tokens = np.array([tag["response_len"] for tag in tags], np.float64)
    return {
        "staleness/mean": float((lags * tokens).sum() / tokens.sum()),
        "staleness/max": float(lags.max()),
        "staleness/bound": float(bound),
    }
