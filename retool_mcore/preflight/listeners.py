"""The listeners that a stage will open, and what keeps others out of them; docs/security.md shows the same table."""

import os
from dataclasses import dataclass

from omegaconf import DictConfig


@dataclass(frozen=True)
class Place:
    where: str
    who: str | None = None  # gets in; None: whoever reaches it


@dataclass(frozen=True)
class Listener:
    """A listener that some stages open to others. benchmarks/cluster/listeners.py measures it."""

    what: str
    parts: str
    stages: tuple[str, ...]
    one: Place  # in a run of one node
    several: Place  # in a job of several nodes, or of one under Slurm


LOOPBACK, NODE, ALL = "loopback", "the node's address", "all addresses"

LISTENERS = (
    Listener(
        "Ray",
        "the GCS, raylets, agents and workers (gRPC)",
        stages=("rl",),
        one=Place(LOOPBACK, "the run's token"),
        several=Place(ALL, "the job's token"),
    ),
    Listener(
        "Ray's figures",
        "its agents' pages for Prometheus, which can be read and nothing else",
        stages=("rl",),
        one=Place(LOOPBACK),
        several=Place(ALL),
    ),
    Listener(
        "vLLM's HTTP",
        "an engine's server inside a run, which nobody asks",
        stages=("rl",),
        one=Place(LOOPBACK),
        several=Place(LOOPBACK),
    ),
    Listener(
        "Gloo and NCCL",
        "the collectives of trainers and engines, and the push to engines elsewhere",
        stages=("sft", "rl"),
        one=Place(LOOPBACK),
        several=Place(NODE),
    ),
    Listener(
        "torch's store",
        "the TCPStore by which trainers and engines meet; its address cannot be chosen",
        stages=("sft", "rl"),
        one=Place(ALL),
        several=Place(ALL),
    ),
)


def line(stage: str, config: DictConfig) -> str | None:
    """One sentence for the layout of `config`; None of a stage that opens nothing to others."""
    # The last: how a job of Slurm tells Ray to leave loopback (cluster/job.py).
    alone = config.parallel.nodes == 1 and "RAY_ADDRESS" not in os.environ
    alone = alone and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "1"
    opened: dict[str, list[str]] = {}
    for listener in LISTENERS:
        if stage in listener.stages:
            place = listener.one if alone else listener.several
            opened.setdefault(place.where, []).append(f"{listener.what} ({place.who or 'no protection'})")
    inside = "on loopback; " if alone and opened.pop(LOOPBACK, None) else ""
    places = "; ".join(f"on {where} {', '.join(parts)}" for where, parts in opened.items())
    need = "" if alone else ": nobody else may reach the nodes' network"
    return f"listens: {inside}{places}{need} (docs/security.md)" if opened else None
