"""Comparison of a rollout with the recorded one that it repeats, token by token."""

from collections.abc import Mapping, Sequence

import numpy as np

from retool_mcore.metrics.behaviour import policy_spans

RESULT = "rollout.json"  # `compare`'s answer in the folder of a replay


def compare(recorded: Sequence[Mapping], found: Sequence[Mapping], seconds: float) -> dict:
    """Compare a repeated rollout with the recorded one: counts, speed, and how much of it is token for token the same.

    `policy_tokens_per_second` counts sampled tokens over the whole rollout; `tool_s`, `generate_s` are means over the
    trajectories; `same_prefix` is the mean share of a recorded response before the first other token.
    """
    same, shares = 0, []
    for old, new in zip(recorded, found, strict=True):
        prefix = _same_prefix(old["response_ids"], new["response_ids"])
        same += len(old["response_ids"]) == len(new["response_ids"]) == prefix
        shares.append(prefix / max(1, len(old["response_ids"])))
    return {
        "trajectories": len(found),
        "same": same,
        "same_prefix": float(np.mean(shares)),
        "seconds": seconds,
        "policy_tokens": policy_tokens(found),
        "policy_tokens_per_second": policy_tokens(found) / seconds,
        "calls": sum(len(record["calls"]) for record in found),
        "tool_s": float(np.mean([record["tool_s"] for record in found])),
        "generate_s": float(np.mean([record["generate_s"] for record in found])),
    }


def policy_tokens(records: Sequence[Mapping]) -> int:
    return sum(end - start for record in records for start, end in policy_spans(record))


def _same_prefix(old, new) -> int:
    length = min(len(old), len(new))
    different = np.flatnonzero(np.asarray(old[:length]) != np.asarray(new[:length]))
    return int(different[0]) if len(different) else length
