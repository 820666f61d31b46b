"""The report of `--dry-run`: what a stage would do, where, from what to what, for how long, and whether its checks
pass."""

import shlex
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from retool_mcore.config import run_settings
from retool_mcore.errors import UserError
from retool_mcore.planner import verdict
from retool_mcore.preflight import disk, relations
from retool_mcore.preflight.machine import gpu_names
from retool_mcore.runner import launch

# The lines that list values, and the keys of each line. A stage shows those that it has.
KEYS = {
    "model": ("model.name", "model.path", "init_from", "policy", "policy_path", "model.dtype"),
    "data": ("data.name", "data.prompt"),
    "reads": ("data.file.train", "data.file.eval", "data.file.sft"),
    "recipe": ("recipe.name", "recipe.paper", "pipeline.name", "correction.name"),
    "where": ("parallel.device", "parallel.nodes", "parallel.gpus_per_node", "parallel.tp", "parallel.pp"),
    "trains": ("train.steps", "train.epochs", "train.batch", "train.n", "train.mini_batch", "train.lr"),
    "lengths": ("rollout.max_prompt_tokens", "rollout.max_response_tokens", "rollout.max_turns", "train.max_length"),
    "samples": ("rollout.format", "rollout.temperature", "k", "problems", "temperature", "top_p"),
    "saves": ("train.save_every", "train.save_minutes", "train.keep_checkpoints", "train.keep_best"),
    "validates": ("train.eval_every", "train.eval_samples", "train.eval_before", "train.eval_sets"),
    "logs": ("train.loggers",),
    "sandbox": ("sandbox.kind", "sandbox.timeout_s", "sandbox.memory_mb"),
}
IN_PROCESS = ("prepare", "doctor")
FILES = {"rl": "train_files", "sft": "sft_train_files", "eval": "validation_files"}


def lines(stage: str, config: DictConfig) -> Iterator[str]:
    """About 15 lines. Runs the stage's checks, which start nothing; `--full` is the configuration itself.

    Raises UserError for values that do not fit each other; what this machine lacks is one of the lines.
    """
    relations.check(stage, config)
    launch.settle_policy(stage, config)
    folder = launch.stage_dir(stage, config)
    yield f"{stage}: would write to {folder}"
    if stage in FILES:
        yield f"  reads     {config.data[FILES[stage]]}"
    for word, keys in KEYS.items():
        values = {key: OmegaConf.select(config, key) for key in keys if stage != "prepare" or word in ("data", "reads")}
        shown = ", ".join(named(key, word, value) for key, value in values.items() if value is not None)
        if shown:
            yield f"  {word:<9} {shown}"
    if stage == "eval" and (line := run_settings(config)):
        yield f"  settings  {line}"
    yield from plan(config)
    for name, text in disk.room(stage, config):
        yield f"  {name:<9} {text}"
    if line := launch.kept_values(stage, config):
        yield f"  resumes   {line}"
    yield f"  command   {command(stage, config)}"
    try:
        launch.preflight(stage, config)
        yield "  checks    passed: it can start"
    except UserError as error:
        yield f"  checks    refused: {error}"


def named(key: str, word: str, value: object) -> str:
    """A key's value on the line that begins with `word`: the name of a group's file stands behind the group."""
    group, _, last = key.rpartition(".")
    last = group if last == "name" else last
    return f"{value}" if last == word else f"{last} {value}"


def whole(stage: str, config: DictConfig) -> str:
    """The resolved configuration and the command, for `--full` and for what has no stage's checks."""
    return OmegaConf.to_yaml(config) + f"# command: {command(stage, config)}"


def command(stage: str, config: DictConfig) -> str:
    if stage in IN_PROCESS:
        return "none, it runs in this process"
    return shlex.join(launch.stage_command(stage, config, launch.stage_dir(stage, config) / "config.yaml"))


def plan(config: DictConfig) -> Iterator[str]:
    """The planner's word, which knows training on GPUs, of models by folder or by our name for them."""
    try:
        report = verdict.lines(config, gpu_names())
    except UserError as error:
        report = [f"none: {error}"]
    for line in report or ["not known: the planner predicts training on GPUs, of a model whose folder is here"]:
        yield f"  plan      {line}"
