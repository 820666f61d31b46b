"""Refuses to go on with a stage whose `init_from` holds other weights than it began with, where they are read again."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore.state import checkpoints, initial_weights

KL = ("recipe.kl_loss", "verl.actor_rollout_ref.actor.use_kl_loss", "verl.algorithm.use_kl_in_reward")


def lies_on(stage: str, config: DictConfig) -> str:
    """What of a resumed `stage` lies on the weights of `init_from`, "" for nothing: all else is in its checkpoint."""
    if stage not in ("sft", "rl") or OmegaConf.select(config, "model.init") != "checkpoint":
        return ""
    if OmegaConf.select(config, "model.lora.rank"):
        return "the base of this run's adapters"
    return "the KL reference of this run" if any(OmegaConf.select(config, key) for key in KL) else ""


def check(stage: str, config: DictConfig, folder: Path) -> None:
    """Raises UserError where a stage that has a checkpoint in `folder` began with other weights. Reads them only where
    their files have changed."""
    if (what := lies_on(stage, config)) and checkpoints.latest(folder / "checkpoints") is not None:
        initial_weights.check(folder, _weights(config), what)


def pin(stage: str, config: DictConfig, folder: Path) -> None:
    """Write into the stage's `folder` which weights it begins with, where a later attempt reads them again."""
    if lies_on(stage, config):
        resumed = checkpoints.latest(folder / "checkpoints") is not None
        initial_weights.pin(folder, _weights(config), resumed)


def _weights(config: DictConfig) -> Path:
    from retool_mcore.preflight.model import find_folder  # not for --help

    return find_folder(str(config.init_from), key="init_from", advice="give the folder that the run began with")
