"""How old the policy was that wrote the tokens of a batch, in updates of the rollout engines' weights."""

from collections.abc import Mapping, Sequence

import numpy as np


def token_staleness(records: Sequence[Mapping], step: int, bound: int) -> dict[str, float]:
    """`staleness/mean`, `staleness/max` and `staleness/bound` of the trajectories that step `step` trained on.

    records: `Trajectory.to_record()`. A sampled token's lag is step - 1 (the version that was trained on it) minus the
    version that wrote it; observations count nothing. {} where the engine told no versions.
    """
    lags, tokens = [], []
    for record in records:
        sampled = np.zeros(len(record["response_ids"]), bool)
        for span in record["spans"]:
            sampled[span["start"] : span["end"]] = span["kind"] == "policy"
        for own in record.get("versions") or ():
            lags.append(step - 1 - own["version"])
            tokens.append(int(sampled[own["start"] : own["end"]].sum()))
    if not lags:
        return {}
    return {
        "staleness/mean": float(np.average(np.array(lags, np.float64), weights=tokens)),
        "staleness/max": float(max(lags)),
        "staleness/bound": float(bound),
    }
