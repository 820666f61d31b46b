"""What follows from a run's size, where the configuration says null. A number there wins."""

import math

from omegaconf import DictConfig, OmegaConf

from retool_mcore.resources import processors
from retool_mcore.sandbox.concurrency import MIN_PROGRAMS
from retool_mcore.tables import yaml_beside

_TABLES = yaml_beside(__file__)
TOKEN_BYTES, EPISODES_A_WORKER, GRADINGS_A_WORKER, STORAGE_UNIT_BYTES, CORES_A_GPU, PLACES = _TABLES.values()


def sizes(config: DictConfig, cores: int) -> dict[str, int]:
    """Processes of all nodes by key of PLACES, and programs at once of one agent worker (sandbox.workers).

    config: of rl; cores: CPU cores of one node that the run may use.
    """
    parallel, train = config.parallel, config.train
    trajectories = train.batch * train.n
    held = trajectories * (1 + config.pipeline.staleness)  # of as many batches ahead, too
    tokens = held * (config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
    left = cores - CORES_A_GPU * parallel.gpus_per_node * (parallel.device == "cuda")
    # verl deals whole prompts to the agent workers; they share with the programs the cores that are left.
    most = max(1, min(train.batch, parallel.nodes * left // 2))
    # One a node at least where there are more nodes: programs run beside them.
    agents = parallel.agent_workers or min(most, max(parallel.nodes, math.ceil(trajectories / EPISODES_A_WORKER)))
    return {
        "parallel.agent_workers": agents,
        "parallel.reward_workers": math.ceil(trajectories / GRADINGS_A_WORKER),
        "parallel.storage_units": math.ceil(tokens * TOKEN_BYTES / STORAGE_UNIT_BYTES),
        "sandbox.workers": max(1, max(MIN_PROGRAMS, left) // math.ceil(agents / parallel.nodes)),
    }


def fill(config: DictConfig, cores: int | None = None) -> None:
    """Put `sizes` in the places of `config` that are null, and say so. To be called on a node of the run."""
    found = sizes(config, cores or processors())
    told = []
    for key, place in PLACES.items():
        if key == "sandbox.workers" and config.sandbox.kind != "local":
            continue
        for path in filter(None, (key, place)):
            if OmegaConf.select(config, path) is None:
                OmegaConf.update(config, path, found[key], force_add=True)
                told += [f"{key}={found[key]}"] * (path == key)
    if told:
        print(f"Derived from the run's size: {', '.join(told)}")
