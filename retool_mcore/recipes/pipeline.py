"""Can rollout and training overlap as the section `pipeline` says? Checked before an engine starts; no torch."""

import importlib.util
from collections.abc import Mapping

from retool_mcore.errors import UserError


def check_pipeline(pipeline: Mapping, *, batch: int, mini_batch: int, rollout_tp: int, eval_every: int) -> None:
    """Refuse what an asynchronous pipeline cannot do. Raises UserError with one sentence.

    batch, mini_batch: prompts a step and an update; rollout_tp: devices of one rollout engine; eval_every: steps
    between validations, -1 for none.
    """
    name, mode = f"pipeline={pipeline['name']}", pipeline["mode"]
    if pipeline["hybrid"] == (mode == "separate_async"):
        raise UserError(
            f"{name}: pipeline.mode={mode} does not go with pipeline.hybrid={str(pipeline['hybrid']).lower()}: take a "
            "whole choice, as pipeline=one_step_off or pipeline=async for engines with devices of their own."
        )
    if mode == "sync":
        if pipeline["staleness"] > 0:
            raise UserError(
                f"{name}: nothing runs ahead, so pipeline.staleness={pipeline['staleness']} has no effect: take "
                "pipeline=partial, one_step_off or async."
            )
        return
    if pipeline["staleness"] < 1:
        raise UserError(f"{name}: pipeline.staleness is {pipeline['staleness']}; expected 1 or more, or pipeline=sync.")
    if eval_every > 0:
        raise UserError(
            f"{name} does not validate inside the run, where rollouts of training are in progress: set "
            "train.eval_every=-1 and evaluate with `retool eval`."
        )
    if pipeline["mode"] == "colocate_async":
        return
    if pipeline["updates"] * mini_batch != batch:
        raise UserError(
            f"{name} makes {pipeline['updates']} update(s) a batch, but train.batch={batch} holds "
            f"{batch / mini_batch:g} of train.mini_batch={mini_batch}: leave train.mini_batch out, or take "
            "pipeline=async."
        )
    gpus = pipeline["rollout_nodes"] * pipeline["rollout_gpus"]
    a_node = max(pipeline["rollout_gpus"], 1)
    if gpus < 1 or gpus % rollout_tp or (a_node % rollout_tp and rollout_tp % a_node):
        raise UserError(
            f"{name}: {pipeline['rollout_nodes']} node(s) of pipeline.rollout_gpus={pipeline['rollout_gpus']} are not "
            f"filled by rollout engines of parallel.rollout_tp={rollout_tp} devices: choose a multiple of it."
        )
    if pipeline["transport"] == "nccl" and importlib.util.find_spec("cupy") is None:
        raise UserError(f"{name}: pipeline.transport=nccl needs CuPy, which is not installed: take transport=host.")


def beside(config: Mapping) -> int:
    """Nodes that a job has for separate rollout engines, in addition to the trainer's; RL only."""
    pipeline = config.get("pipeline") or {"hybrid": True}
    return 0 if pipeline["hybrid"] else pipeline["rollout_nodes"]


def check_slurm(config: Mapping) -> None:
    """Refuse rollout engines that the nodes of a Slurm job, which are all alike, cannot hold. Raises UserError."""
    if not beside(config):
        return
    pipeline, a_node = config["pipeline"], config["parallel"]["gpus_per_node"]
    if pipeline["rollout_gpus"] > a_node:
        raise UserError(
            f"pipeline={pipeline['name']}: pipeline.rollout_gpus={pipeline['rollout_gpus']} on each of "
            f"{pipeline['rollout_nodes']} node(s), but a job's nodes have parallel.gpus_per_node={a_node}: lower it, "
            "or parallel.rollout_tp, and raise rollout_nodes."
        )
