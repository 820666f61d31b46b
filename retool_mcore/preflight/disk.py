"""Room on the disk: what a stage still has to write, what a chain of stages keeps, what an export takes."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.planner.memory import ADAM, BF16, FP32
from retool_mcore.planner.run import shape_of
from retool_mcore.preflight import machine, memory
from retool_mcore.resources import GIB
from retool_mcore.state import checkpoints


def weights_bytes(config: DictConfig, parameters: int) -> int:
    """Bytes of a policy's Hugging Face folder."""
    return parameters * (FP32 if config.model.dtype == "float32" else BF16)


def checkpoint_bytes(config: DictConfig, parameters: int) -> int:
    """Bytes of one checkpoint: the policy's weights, the float32 weights and the two moments that its optimizer trains.

    A critic has as much again. Adapters (model.lora) and their optimizer are nothing next to the frozen weights.
    """
    trained = 0 if OmegaConf.select(config, "model.lora.rank") else ADAM * parameters
    models = 1 + (OmegaConf.select(config, "recipe.advantage") == "gae")
    return models * (weights_bytes(config, parameters) + trained)


def kept(config: DictConfig) -> int:
    """How many checkpoints the stage keeps: the last ones, and the best where that is chosen."""
    return config.train.keep_checkpoints + (config.train.keep_best is not None)


def stage_bytes(config: DictConfig, parameters: int) -> int:
    """Bytes of all checkpoints of a stage: those that it keeps and the one that is written before the oldest goes."""
    return (kept(config) + 1) * checkpoint_bytes(config, parameters)


def check_checkpoints(stage: str, config: DictConfig, parameters: int) -> None:
    """Refuse a run folder without room for the checkpoints that the stage still has to write. Raises UserError.

    Those that are there already count, and what a killed save left behind, which the trainer removes, is free.
    """
    root, size = Path(config.run_dir) / stage / "checkpoints", checkpoint_bytes(config, parameters)
    to_come = kept(config) + 1 - min(len(checkpoints.complete(root)), kept(config))
    needed = to_come * size
    superfluous = checkpoints.superfluous_bytes(Path(config.run_dir) / "sft") if stage == "rl" else 0
    if config.train.get("thin_sft"):  # it goes once the first of RL's own is whole
        needed = max(needed - superfluous, size)
        superfluous = 0
    needed += machine.MIN_DISK_BYTES - sum(map(checkpoints.folder_bytes, checkpoints.unfinished_ones(root)))
    advice = "free some space, lower train.keep_checkpoints"
    if superfluous:
        advice += f", set train.thin_sft=true, which removes {superfluous / GIB:.1f} GiB that only a resumed SFT reads,"
    machine.check_disk(config.run_dir, needed_bytes=needed, advice=f"{advice} or choose another runs_dir")


def check_export(config: DictConfig, parameters: int) -> None:
    """Refuse an output folder without room for the exported weights. Raises UserError."""
    needed = weights_bytes(config, parameters) + machine.MIN_DISK_BYTES
    free = machine.free_bytes(config.output)
    if free < needed:
        raise UserError(
            f"output {config.output} has {free / GIB:.1f} GiB free and the export needs about {needed / GIB:.1f} GiB: "
            "free some space or give another output=FOLDER."
        )


def chain_line(configs: Mapping[str, DictConfig], parameters: int) -> str:
    """Return the most that a run's `sft` and then `rl` have on the disk at a time, in words.

    configs: the configuration of each stage by its name; other stages than these two write little.
    """
    sft, rl = configs["sft"], configs["rl"]
    weights = kept(sft) * weights_bytes(sft, parameters)
    full, own = kept(sft) * checkpoint_bytes(sft, parameters), stage_bytes(rl, parameters)
    stays, words = full, "that stay of sft"
    if rl.train.get("thin_sft"):
        stays, words = weights, "that stay of sft once RL has a checkpoint of its own (train.thin_sft)"
    most = max(stage_bytes(sft, parameters), full + checkpoint_bytes(rl, parameters), stays + own)
    line = f"sft and rl one after the other: {gigabytes(most)}, with {gigabytes(stays)} {words}"
    saved = most - max(stage_bytes(sft, parameters), full + checkpoint_bytes(rl, parameters), weights + own)
    return f"{line}; train.thin_sft=true saves {gigabytes(saved)}" if saved else line


def follows_own_sft(config: DictConfig) -> bool:
    """Whether a stage `rl` starts from what this run's `sft` leaves."""
    own = Path(config.run_dir) / "sft"
    return own in Path(str(config.get("init_from"))).absolute().parents


def stage_line(config: DictConfig, parameters: int) -> str:
    """Return what a stage's checkpoints take, as "1,835 GB, 3 checkpoints of 459 and one that is written"."""
    size = gigabytes(checkpoint_bytes(config, parameters)).removesuffix(" GB")
    total = gigabytes(stage_bytes(config, parameters))
    return f"{total}, {kept(config)} checkpoints of {size} and one that is written"


def room(stage: str, config: DictConfig) -> Iterator[tuple[str, str]]:
    """("disk" or "memory", what the stage takes of it in words), of a model that the planner knows."""
    try:
        shape = shape_of(config)
    except UserError:  # an architecture that preflight refuses
        return
    if shape is None:
        return
    if stage == "export":
        yield "disk", f"{gigabytes(weights_bytes(config, shape.parameters))} in {config.output}"
    elif "train" in config:
        if config.train.save_every > 0:
            yield "disk", stage_line(config, shape.parameters)
        yield "memory", f"{memory.node_needs(config, shape).total / GIB:,.0f} GiB of each node"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB"
