"""The commands that compose the configuration of a stage and run it: prepare, sft, rl, eval and export."""

import os
from collections.abc import Iterator

from typer.core import TyperCommand

from retool_mcore.cli.app import DryRun, Full, Overrides, command
from retool_mcore.config import Unknown, compose, own_words
from retool_mcore.config.defaults import REQUIRED, Default, shown
from retool_mcore.config.files import CONFIG_DIR
from retool_mcore.config.keys import UNSET, fields
from retool_mcore.config.models import STAGES
from retool_mcore.runner.launch import launch, stage_dir


class StageCommand(TyperCommand):
    """A command whose help ends with the keys of the stage's typed configuration."""

    def format_epilog(self, ctx, formatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Groups, with their presets (docs/configuration.md: their keys)"):
            formatter.write_dl(list(group_choices(self.name or "")))
        with formatter.section("Keys, with their defaults"):
            formatter.write_dl(list(own_keys(self.name or "")))


def group_choices(stage: str) -> Iterator[tuple[str, str]]:
    """(group=preset, all presets) of each group of a stage."""
    for group, preset in STAGES[stage].groups.items():
        presets = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))
        yield f"{group}={preset}", ", ".join(presets)


def own_keys(stage: str) -> Iterator[tuple[str, str]]:
    """(key=default, first sentence of its docstring) of the stage's keys outside of its groups."""
    kind = STAGES[stage]
    for key, default, why in fields(kind):
        if key.split(".")[0] in kind.groups or key.endswith(".*"):
            continue
        value = default.text if isinstance(default, Default) else default
        listed = f"[{','.join(map(str, value))}]" if isinstance(value, list) else shown(value)
        yield key if value in (UNSET, REQUIRED) else f"{key}={listed}", why.partition(". ")[0].rstrip(".")


@command(
    "prepare",
    "retool prepare",
    "retool prepare name=maths data=math data.sources.aime_2025.location=aime.parquet",
    cls=StageCommand,
)
def prepare(overrides: Overrides = None, dry_run: DryRun = False, full: Full = False) -> None:
    """Write the data sets of a run as parquet, and the tiny model when the run uses it. Problems are checked row by
    row, malformed ones reported and counted, and split so that none is in both training and validation."""
    run("prepare", overrides, dry_run, full)


@command("sft", "retool sft", "retool sft train.lr=1e-4 train.steps=200 parallel=cpu-pp2", cls=StageCommand)
def sft(overrides: Overrides = None, dry_run: DryRun = False, full: Full = False) -> None:
    """Cold-start supervised fine-tuning on traces with code and interpreter output; the loss is on the policy's own
    tokens only. A second start goes on from the last complete checkpoint."""
    run("sft", overrides, dry_run, full)


@command(
    "rl", "retool rl recipe=dapo", "retool rl model=qwen2.5-32b parallel=2x8-80g data=math --dry-run", cls=StageCommand
)
def rl(overrides: Overrides = None, dry_run: DryRun = False, full: Full = False) -> None:
    """Reinforcement learning with the interpreter in the rollout: vLLM generates, the sandbox runs the code, Megatron
    trains. A second start goes on from the last complete checkpoint."""
    run("rl", overrides, dry_run, full)


@command(
    "eval",
    "retool eval policy=sft",
    "retool eval policy=rl k=32 temperature=1.0 top_p=0.7",
    "retool eval model=/models/Qwen2.5-7B-Instruct data=file data.file.eval=mine.jsonl",
    "retool eval name=mine policy=rl benchmark=human_eval",
    cls=StageCommand,
)
def evaluate(overrides: Overrides = None, dry_run: DryRun = False, full: Full = False) -> None:
    """Evaluate a policy (init, sft, rl or a Hugging Face folder) with the rollout's own episodes: mean@k, best@k,
    maj@k and the behaviour metrics, to RUN/eval/<policy>. model=FOLDER needs no run: it reads the problems by
    itself."""
    run("eval", overrides, dry_run, full)


@command("export", "retool export policy=rl", "retool export policy=sft output=/models/my-policy", cls=StageCommand)
def export(overrides: Overrides = None, dry_run: DryRun = False, full: Full = False) -> None:
    """Write the last complete Megatron checkpoint as a Hugging Face folder, and check that both give the same logits
    on a probe batch."""
    run("export", overrides, dry_run, full)


def run(stage: str, overrides: list[str] | None, dry_run: bool, full: bool) -> None:
    """Compose the stage's configuration and run it; with `dry_run` or `full`, print what would run instead."""
    words = overrides or []
    try:
        config = compose(stage, words)
    except Unknown:  # RETOOL_STAGES: of launch/quickstart.sh and sweep.sh
        config = compose(stage, own_words(stage, words, os.environ.get("RETOOL_STAGES", stage).split()))
    if dry_run or full:
        from retool_mcore.cli.dry_run import lines, whole

        print(whole(stage, config) if full else "\n".join(lines(stage, config)))
        return
    launch(stage, config)
    if stage == "eval":
        from retool_mcore.cli.summary import print_evaluation

        print_evaluation(stage_dir(stage, config))
