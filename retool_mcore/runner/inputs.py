"""What a stage's result is made from, and whether it is there already."""

from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.config import STAGE_POLICIES, config_hash
from retool_mcore.errors import UserError
from retool_mcore.state import checkpoints

POLICIES = ("init", *STAGE_POLICIES)  # policies of a run that eval and export know by name


def stage_dir(stage: str, config: DictConfig) -> Path:
    """Folder of a stage's files; an evaluation's ends in its label, else in the policy's word or its folder's name."""
    if stage != "eval":
        return Path(config.run_dir) / stage
    policy = str(config.policy)
    return Path(config.run_dir) / "eval" / str(config.label or (policy if policy in POLICIES else Path(policy).name))


def is_complete(stage: str, config: DictConfig) -> bool:
    """Whether this very configuration was carried to its end before; then it says so."""
    complete = stage_dir(stage, config) / "COMPLETE"
    if not complete.is_file() or complete.read_text().strip() != config_hash(config):
        return False
    print(f"{stage}: complete already with this configuration; remove {complete} to run it again.")
    return True


def check_start(stage: str, config: DictConfig) -> None:
    """Refuse to start a training from a stage that is not at its end, whose link names a checkpoint all the same.
    Raises UserError. A run that has checkpoints of its own does not start from there."""
    own = stage_dir(stage, config) / "checkpoints"
    if "init_from" not in config or config.init_from is None or checkpoints.latest(own) is not None:
        return
    link = Path(config.init_from)
    if (found := checkpoints.half_trained(link)) is not None:
        before, step = found
        raise UserError(
            f"init_from={link} is step {step} of {before}, which has not come to its end: run `retool {before}` until "
            f"it is complete, or give init_from={link.resolve()} to start {stage} from that step."
        )
