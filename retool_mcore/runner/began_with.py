"""Refuses to go on with a stage that began with other adapters, whose `init_from` holds other weights than it began
with, where they are read again, or whose checkpoints have no optimizer any more."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.state import checkpoints, initial_weights

KL = ("recipe.kl_loss", "verl.actor_rollout_ref.actor.use_kl_loss", "verl.algorithm.use_kl_in_reward")


def lies_on(stage: str, config: DictConfig) -> str:
    """Return what a resumed `stage` takes from the weights of `init_from`, "" for nothing: all else is in its
    checkpoint."""
    if stage not in ("sft", "rl") or OmegaConf.select(config, "model.init") != "checkpoint":
        return ""
    if OmegaConf.select(config, "model.lora.rank"):
        return "the base of this run's adapters"
    return "the KL reference of this run" if any(OmegaConf.select(config, key) for key in KL) else ""


def check_adapters(config: DictConfig, folder: Path) -> None:
    """Raises UserError where a stage that has a checkpoint in `folder` trains other adapters than before."""
    if (last := checkpoints.latest(folder / "checkpoints")) is None:
        return
    requested = config.model.lora if OmegaConf.select(config, "model.lora.rank") else None
    if (trained := checkpoints.lora(last)) != requested:
        raise UserError(
            f"{last} is of model.lora={trained}, and this run asks for {requested} (None: all weights are trained): "
            "go on with the same, or take another name."
        )


def check(stage: str, config: DictConfig, folder: Path) -> None:
    """Raises UserError where a stage that has a checkpoint in `folder` began with other weights, or that checkpoint was
    thinned out. Reads weights only where their files have changed."""
    if (last := checkpoints.latest(folder / "checkpoints")) is None:
        return
    if checkpoints.is_thinned(last):
        raise UserError(
            f"{stage}: {last} has no optimizer any more (train.thin_sft of this run's RL removed it), so {stage} "
            "cannot go on from there: add another name=."
        )
    if what := lies_on(stage, config):
        initial_weights.check(folder, _weights(config), what)


def pin(stage: str, config: DictConfig, folder: Path) -> None:
    """Write into the stage's `folder` which weights it begins with, where a later attempt reads them again."""
    if lies_on(stage, config):
        resumed = checkpoints.latest(folder / "checkpoints") is not None
        initial_weights.pin(folder, _weights(config), resumed)


def _weights(config: DictConfig) -> Path:
    from retool_mcore.preflight.model import find_folder  # not for --help

    return find_folder(str(config.init_from), key="init_from", advice="give the folder that the run began with")
