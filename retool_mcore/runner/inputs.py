"""The inputs of a stage's result, and whether that result exists already.

The configuration alone does not identify them: it names policies by links that move, and files whose content changes.
COMPLETE therefore also holds a digest of the content that these led to.
"""

import json
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.config import config_hash, default_label
from retool_mcore.errors import UserError
from retool_mcore.state import checkpoints
from retool_mcore.state.identity import digest, policy_files

NAMED = ("eval", "export")  # stages that take a policy by its name in the run
EXPORT = "export.json"  # in an exported folder


def stage_dir(stage: str, config: DictConfig) -> Path:
    """Folder of a stage's files; an evaluation's ends in its label."""
    if stage != "eval":
        return Path(config.run_dir) / stage
    return Path(config.run_dir) / "eval" / str(config.label or default_label(config.policy))


def settle_policy(stage: str, config: DictConfig) -> None:
    """Put the folder that the policy's link names now in place of the link, in `config`: it may move while the stage
    runs. A policy that is not there stays as it is, for preflight to refuse.

    Where the link is missing or broken, the newest whole checkpoint counts: older versions linked at the end alone.
    """
    if stage not in NAMED:
        return
    from retool_mcore.preflight.model import find_folder  # not for --help

    name = str(config.policy_path)
    if not Path(name).is_dir() and config.policy in ("sft", "rl"):
        last = checkpoints.latest(Path(config.run_dir) / config.policy / "checkpoints")
        name = name if last is None else str(checkpoints.policy_folder(last))
    try:
        config.policy_path = str(find_folder(name, key="policy", advice="").resolve())
    except UserError:
        return


def completion(stage: str, config: DictConfig) -> str:
    """Return the content of COMPLETE once the stage has finished. Raises UserError for data that are not there."""
    if stage == "eval":
        from retool_mcore.train import evaluation  # reads data: not for --help

        return evaluation.asked_for(config).mark
    if stage == "export":
        return digest(config_hash(config), policy_files(Path(config.policy_path)))
    return config_hash(config)


def is_complete(stage: str, config: DictConfig) -> bool:
    """Whether the result is there that this configuration asks for, of what it leads to now; then it says so."""
    folder = stage_dir(stage, config)
    complete = folder / "COMPLETE"
    if not complete.is_file() or (stage in NAMED and not Path(config.policy_path).is_dir()):
        return False
    if complete.read_text().strip() != completion(stage, config) or not _is_there(stage, config):
        return False
    if stage == "prepare":
        from retool_mcore.train.prepare import changed_input  # reads data: not for --help

        if (changed := changed_input(config)) is not None:
            print(f"prepare: {changed}: prepared anew. Stages that read the data before keep what they made of it.")
            return False
    print(f"{stage}: complete already with this configuration; remove {complete} to run it again.")
    return True


def _is_there(stage: str, config: DictConfig) -> bool:
    """Whether the stage's result is still where it was written: another run may have exported to the same folder."""
    if stage == "eval":
        return (stage_dir(stage, config) / "metrics.json").is_file()
    if stage != "export":
        return True
    report = Path(config.output) / EXPORT
    made = json.loads(report.read_text()) if report.is_file() else {}
    return made.get("policy_files") == policy_files(Path(config.policy_path))


def check_start(stage: str, config: DictConfig) -> None:
    """Refuse to start a training from a stage that is not at its end, whose link names a checkpoint all the same.
    Raises UserError. A run that has checkpoints of its own does not start from there."""
    own = stage_dir(stage, config) / "checkpoints"
    if "init_from" not in config or config.init_from is None or checkpoints.latest(own) is not None:
        return
    link = Path(config.init_from)
    if (half_trained := checkpoints.half_trained(link)) is not None:
        before, step = half_trained
        raise UserError(
            f"init_from={link} is step {step} of {before}, which has not come to its end: run `retool {before}` until "
            f"it is complete, or give init_from={link.resolve()} to start {stage} from that step."
        )
