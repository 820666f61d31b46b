"""The Typer application, how a function becomes one of its commands, and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

app = typer.Typer(
    name="retool",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tool-integrated reinforcement learning after ReTool: data, cold-start SFT, RL, evaluation, export.",
    epilog="Start with `retool prepare`, then sft, rl and eval; each says more with --help.",
)

Overrides = Annotated[
    list[str] | None,
    Argument(metavar="[KEY=VALUE]...", help="Hydra-style overrides and group choices, as in recipe=dapo."),
]
RunOverrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="The words of the run, as of `retool rl`.")
]
Run = Annotated[Path, Argument(metavar="RUN", help="Folder of a run, as in runs/quickstart.")]
RunsOrPlan = Annotated[
    list[Path], Argument(metavar="RUN...|PLAN", help="Folders of runs, as in runs/quickstart; or a plan's YAML file.")
]
Runs = Annotated[list[Path], Argument(metavar="RUN...", help="Folders of runs, as in runs/quickstart.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would run and whether its checks pass; start nothing.")]
Full = Annotated[bool, Option("--full", help="Print the whole resolved configuration; start nothing.")]
# Of the commands with which a policy answers: chat and serve.
PolicyOf = Annotated[
    Path, Argument(metavar="RUN|FOLDER", help="A run, whose newest policy answers, or a model's folder.")
]
PolicyOverrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="As for retool eval: policy=sft, top_p=0.7.")
]
Context = Annotated[int | None, Option(metavar="TOKENS", help="Of a conversation.", min=1)]
Host = Annotated[str, Option(metavar="ADDRESS", help="Where to listen; the default is this machine only.")]

# Of the planner's commands.
GpuMemory = Annotated[float | None, Option(metavar="GIB", help="Of one GPU, as it is sold: 80, 141.")]
Gpu = Annotated[str | None, Option(metavar="H100|H200|A100", help="Speeds; default: the one whose memory is nearest.")]
MeanLength = Annotated[
    int | None, Option(metavar="TOKENS", help="Mean length; default: a third of the longest.", min=1)
]
LengthsOf = Annotated[Path | None, Option(metavar="RUN", help="Lengths of that run's last trajectories instead.")]


def command(name: str, *examples: str, group: typer.Typer = app, **settings: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that makes a function the command `name` of a group.

    The command's help is the function's docstring, and below it are the examples, which are whole command lines.
    settings: further ones of Typer's.
    """
    lines = "\n".join(f"  {example}" for example in examples)
    return group.command(name, epilog=f"\b\nExamples:\n{lines}", **settings)
