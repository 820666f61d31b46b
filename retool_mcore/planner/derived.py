"""Values that follow from a run's size, where the configuration says null. A number there wins."""

import math

from omegaconf import DictConfig, OmegaConf

from retool_mcore.resources import processors
from retool_mcore.sandbox.concurrency import MIN_PROGRAMS

# A rollout worker is one asyncio process on one core. Its episodes wait for the engine and for programs; the work of a
# turn (rendering, parsing, sending) must not delay the others.
EPISODES_A_WORKER = 256
# Grading takes 1 to 1.5 ms at the 99th percentile (docs/measured/grader.md): at most 2 s of one core for a worker.
GRADINGS_A_WORKER = 1024
# Left free for the GPU's own processes: a trainer's rank, an engine's worker and a share of the engine's scheduler.
CORES_A_GPU = 3
# Keys that may be null, and the key at which verl reads each; None: only we read it.
PLACES: dict[str, str | None] = {
    "parallel.agent_workers": "verl.actor_rollout_ref.rollout.agent.num_workers",
    "parallel.reward_workers": "verl.reward.num_workers",
    "sandbox.workers": None,
}


def sizes(config: DictConfig, cores: int) -> dict[str, int]:
    """Processes of all nodes by key of PLACES, and programs at once of one rollout worker (sandbox.workers).

    config: of rl; cores: CPU cores of one node that the run may use.
    """
    parallel, train = config.parallel, config.train
    trajectories = train.batch * train.n
    left = cores - CORES_A_GPU * parallel.gpus_per_node * (parallel.device == "cuda")
    # A rollout worker gets whole groups; the workers share with the programs the cores that are left.
    most = max(1, min(train.batch, parallel.nodes * left // 2))
    # One a node at least where there are more nodes: programs run next to them.
    agents = parallel.agent_workers or min(most, max(parallel.nodes, math.ceil(trajectories / EPISODES_A_WORKER)))
    return {
        "parallel.agent_workers": agents,
        "parallel.reward_workers": math.ceil(trajectories / GRADINGS_A_WORKER),
        "sandbox.workers": max(1, max(MIN_PROGRAMS, left) // math.ceil(agents / parallel.nodes)),
    }


def fill(config: DictConfig, cores: int | None = None) -> None:
    """Put `sizes` in the places of `config` that are null, and say so. To be called on a node of the run."""
    derived = sizes(config, cores or processors())
    report = []
    for key, place in PLACES.items():
        if key == "sandbox.workers" and config.sandbox.kind != "local":
            continue
        for path in filter(None, (key, place)):
            if OmegaConf.select(config, path) is None:
                OmegaConf.update(config, path, derived[key], force_add=True)
                report += [f"{key}={derived[key]}"] * (path == key)
    if report:
        print(f"Derived from the run's size: {', '.join(report)}")
