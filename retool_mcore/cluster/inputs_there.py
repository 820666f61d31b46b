"""Whether what a job will read is there, as far as the node that submits it can see."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from retool_mcore.cluster.site import Site
from retool_mcore.data.schema import check_rl, check_sft
from retool_mcore.data.validation_sets import validation_sets
from retool_mcore.errors import UserError
from retool_mcore.preflight import data
from retool_mcore.preflight.machine import existing_parent
from retool_mcore.preflight.model import HUB_NAME, find_folder, read_model
from retool_mcore.runner.inputs import check_start, settle_policy

CACHES = ("HF_HOME", "HF_HUB_CACHE")  # where hub names are looked up: a site's own are its nodes'


def check(stage: str, config: DictConfig, site: Site, earlier: Collection[str] = (), unknown: bool = False) -> str:
    """Refuse a job whose data or policy is missing, before it waits in the queue. Reads no weights, takes no GPU.

    Args:
        earlier: stages that come to their end before the job starts; what they write need not be there yet.
        unknown: it also waits for a job known only by its number, which may write into the run's folder.

    Returns:
        What could not be looked at from here, in words; "" for nothing.

    Raises:
        UserError: the first thing that is missing or damaged, and what to do.
    """
    run_dir, hidden = Path(config.run_dir), []
    made = [run_dir / name for name in earlier] + ([run_dir] if unknown else [])

    def comes(path: Path) -> bool:
        return any(folder in path.absolute().parents for folder in made)

    def visible(path: Path) -> bool:
        if not (seen := _visible(path, run_dir, site)):
            hidden.append(str(path))
        return seen

    settle_policy(stage, config)
    name, key, advice = _policy(stage, config)
    if name is None:
        raise UserError(f"{stage}: no model is named: add model.path=FOLDER, or a choice such as model=qwen2.5-7b.")
    if not comes(Path(name)):
        if visible(Path(name)):
            folder = find_folder(name, key=key, advice=advice)
            read_model(folder, weights=config.model.get("init", "checkpoint") == "checkpoint")
        check_start(stage, config)
    for file_key, paths, schema in _files(stage, config):
        there = [path for path in data.listed(paths) if not comes(path) and visible(path)]
        if there:
            data.check_files(file_key, list(map(str, there)), schema)
    return ", ".join(dict.fromkeys(hidden))


def _policy(stage: str, config: DictConfig) -> tuple[str | None, str, str]:
    """(what the job starts from, its key, what to do where it is not there)."""
    if stage in ("sft", "rl"):
        before = "give the folder of a Hugging Face model"
        if stage == "rl":
            before = "submit `sft rl` in one chain, or with --after sft; or give the folder of a Hugging Face model"
        return config.init_from, "init_from", before
    advice = f"submit {stage} behind the stage that makes it, as in `rl {stage}`, or give another policy="
    return config.policy_path, f"policy={config.policy}", advice


def _files(stage: str, config: DictConfig) -> Iterator[tuple[str, Any, Callable[[str], None]]]:
    """(key, paths, check of the schema) of the parquet files that the stage reads."""
    if stage == "sft":
        for key in ("sft_train_files", "sft_validation_files"):
            yield f"data.{key}", config.data[key], check_sft
    elif stage == "rl":
        for key in ("data.train_files", *(validation_set.key for validation_set in validation_sets(config))):
            yield key, config.data[key.removeprefix("data.")], check_rl
    elif stage == "eval" and not config.get("prepare"):  # else made when the stage begins
        yield "data.validation_files", config.data.validation_files, check_rl


def _visible(path: Path, run_dir: Path, site: Site) -> bool:
    """Whether the job's nodes see at this path, or under this hub name, what is seen from here."""
    if run_dir in path.absolute().parents:
        return True
    if site.container.kind != "none" or (site.scratch and Path(site.scratch) in path.absolute().parents):
        return False
    if HUB_NAME.fullmatch(str(path)) and not path.is_dir():
        return not any(name in site.env for name in CACHES)
    return existing_parent(path) != Path("/")
