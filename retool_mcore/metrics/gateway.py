"""What the endpoint saw of a step's agents (gateway/): requests, segments, and how the agents ended."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np


def main_records(records: Sequence[Mapping]) -> list[Mapping]:
    """Return one record an episode: of an agent's several trajectories the first, which holds the last reply."""
    return [record for record in records if record.get("segment", 0) == 0]


def gateway_metrics(records: Sequence[Mapping]) -> dict[str, float]:
    """Means over a step's episodes; {} where no agent ran them.

    segments                  trajectories of an episode
    opened/REASON             replies that do not continue a trajectory: edited, other_root, sibling, template, tools
    requests, retries         of the agent; retries got a reply that was sampled before
    refused/CODE              requests that were refused
    lost_replies              sampled replies that no client got, left out of training
    attempts                  runs of the agent
    """
    noted = [record for record in main_records(records) if "gateway" in record]
    if not noted:
        return {}
    metrics = {"segments": float(np.mean([record["segments"] for record in noted]))}
    for name, key in (("requests", "requests"), ("retries", "retries"), ("lost_replies", "lost"), ("attempts",) * 2):
        metrics[name] = float(np.mean([record["gateway"][key] for record in noted]))
    for name in ("opened", "refused"):
        counts: Counter[str] = Counter()
        for record in noted:
            counts.update(record["gateway"].get(name, {}))
        metrics |= {f"{name}/{reason}": count / len(noted) for reason, count in sorted(counts.items())}
    return metrics
