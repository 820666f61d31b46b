"""The allocation that a Slurm job has, and a stage's configuration for it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from retool_mcore.cluster import slurm
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.preflight.machine import gpu_memory_bytes
from retool_mcore.recipes.pipeline import beside, check_slurm


@dataclass(frozen=True)
class Allocation:
    """The resources that Slurm gave to the job."""

    job_id: int
    restart: int
    nodes: tuple[str, ...]  # this one first
    gpus_per_node: int | None
    log: str = ""  # where Slurm writes this job's output, as slurm/*.sbatch ask for it
    array_task: str = ""  # ARRAY_TASK of a task of an array

    @property
    def slurm_id(self) -> str:
        """This job, and no other task of its array, as Slurm's commands take it."""
        return self.array_task or str(self.job_id)

    @property
    def mark(self) -> str:
        """Names this attempt's processes and folders on every node."""
        return f"{self.slurm_id}-{self.restart}"


def read_allocation(env: Mapping[str, str] = os.environ) -> Allocation:
    """Raises UserError outside a Slurm job."""
    if "SLURM_JOB_ID" not in env:
        raise UserError("this runs inside a Slurm job only: use `retool submit STAGE` or `sbatch slurm/STAGE.sbatch`.")
    nodes = slurm.hostnames(env["SLURM_JOB_NODELIST"])
    here = env.get("SLURMD_NODENAME", nodes[0])
    gpus = env.get("SLURM_GPUS_ON_NODE") or len(gpu_memory_bytes())  # Slurm need not count GPUs
    return Allocation(
        int(env["SLURM_JOB_ID"]),
        int(env.get("SLURM_RESTART_COUNT") or 0),
        (here, *(node for node in nodes if node != here)),
        int(gpus) or None,
        f"{env.get('SLURM_SUBMIT_DIR', '')}/slurm-{env['SLURM_JOB_ID']}-{env.get('SLURM_JOB_NAME', '')}.out",
        slurm.own_id(env) if "SLURM_ARRAY_JOB_ID" in env else "",
    )


def configure(stage: str, overrides: Sequence[str], allocation: Allocation) -> DictConfig:
    """The stage's configuration, with as many nodes and GPUs a node as the job has.

    Raises:
        UserError: the user asked for others, or the job has none left besides the rollout engines', or as `compose`.
    """
    config = compose(stage, overrides)
    layout = {"parallel.nodes": len(allocation.nodes) - beside(config)}
    if layout["parallel.nodes"] < 1:
        raise UserError(
            f"pipeline={config.pipeline.name} has {beside(config)} node(s) for rollouts besides the trainer's, but the "
            f"job has {len(allocation.nodes)} in all: submit it with more --nodes, or take pipeline=sync."
        )
    if config.parallel.device == "cuda":
        if allocation.gpus_per_node is None:
            raise UserError("parallel.device=cuda, but the job's node has no GPUs: submit it with --gpus-per-node.")
        layout["parallel.gpus_per_node"] = allocation.gpus_per_node
    if stage == "eval" and len(allocation.nodes) > 1:
        raise UserError(f"{stage} runs on one node, but the job has {len(allocation.nodes)}: submit it with --nodes=1.")
    differ = {key: value for key, value in layout.items() if OmegaConf.select(config, key) != value}
    for key, value in differ.items():
        if any(override.lstrip("+").startswith(f"{key}=") for override in overrides):
            asked = OmegaConf.select(config, key)
            raise UserError(f"{key}={asked}, but the job has {value}: submit it with as many, or leave {key} out.")
    config = compose(stage, [*overrides, *(f"{key}={value}" for key, value in differ.items())]) if differ else config
    check_slurm(config)
    return config
