"""What a stage will listen on, and what keeps others out of it: listeners.yaml, which docs/security.md shows too."""

import os

from omegaconf import DictConfig

from retool_mcore.tables import yaml_beside

LISTENERS = yaml_beside(__file__)


def line(stage: str, config: DictConfig) -> str | None:
    """One sentence for the layout of `config`; None of a stage that opens nothing to others."""
    # The last: how a job of Slurm tells Ray to leave loopback (cluster/job.py).
    alone = config.parallel.nodes == 1 and "RAY_ADDRESS" not in os.environ
    alone = alone and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "1"
    told: dict[str, list[str]] = {}
    for entry in LISTENERS:
        if stage in entry["stages"]:
            place = entry["one" if alone else "several"]
            told.setdefault(place["where"], []).append(f"{entry['what']} ({place['who'] or 'no protection'})")
    inside = "on loopback; " if alone and told.pop("loopback", None) else ""
    places = "; ".join(f"on {where} {', '.join(parts)}" for where, parts in told.items())
    need = "" if alone else ": nobody else may reach the nodes' network"
    return f"listens: {inside}{places}{need} (docs/security.md)" if told else None
