"""The command line, `retool`, and its commands from `prepare` to `sandbox`.

Only composes a configuration and hands it to launch.py; nothing here imports torch, so --help is quick.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import OmegaConf
from typer import Argument, Option
from typer.exceptions import TyperException

from retool_mcore.cli.plan import plan
from retool_mcore.cli.questions import QUESTIONS
from retool_mcore.cli.simulate import simulate
from retool_mcore.config import Unknown, compose, own_words
from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files, private_files
from retool_mcore.runner.launch import Paused, StageFailed, Stopped, launch, stage_dir
from retool_mcore.state.stop import EXIT_CODE
from retool_mcore.tables import yaml_beside

app = typer.Typer(
    name="retool",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tool-integrated reinforcement learning after ReTool: data, cold-start SFT, RL, evaluation, export.",
    epilog="Start with `retool prepare`, then sft, rl and eval; each says more with --help.",
)
_COMMANDS = yaml_beside(__file__, "commands.yaml")


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"retool_mcore {version('retool-mcore')}")
        raise typer.Exit


@app.callback()
def options(
    shown: Annotated[
        bool, Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _command(words: str, group: typer.Typer = app, **settings: Any) -> Callable[[Callable], Callable]:
    """Makes a function `retool WORDS`, with its examples below the help."""
    examples = "\n".join(f"  {example}" for example in _COMMANDS["examples"][words])
    make = group.command(words.split()[-1], epilog=f"\b\nExamples:\n{examples}", **settings)
    return lambda function: make(_described(function, words))


def _described(function: Callable, words: str) -> Callable:
    """The function of the command `words`, whose parameters are what commands.yaml says of them."""
    for kind, info in (("arguments", Argument), ("options", Option)):
        table = _COMMANDS[kind]
        for name, said in (table["any"] | table.get(words, {})).items():
            if name in function.__annotations__:
                flags = [said["flag"]] if "flag" in said else []
                given = {key: value for key, value in said.items() if key != "flag"}
                function.__annotations__[name] = Annotated[function.__annotations__[name], info(*flags, **given)]
    return function


def _runner(stage: str) -> Callable:
    """What `retool STAGE` does: compose a configuration, and tell of it or carry it out."""

    def run(overrides: list[str] | None = None, dry_run: bool = False, full: bool = False) -> None:
        words = overrides or []
        try:
            config = compose(stage, words)
        except Unknown:  # RETOOL_STAGES: of launch/quickstart.sh and sweep.sh
            config = compose(stage, own_words(stage, words, os.environ.get("RETOOL_STAGES", stage).split()))
        if dry_run or full:
            from retool_mcore.cli.dry_run import lines, whole

            print(whole(stage, config) if full else "\n".join(lines(stage, config)))
        else:
            launch(stage, config)
            if stage == "eval":
                from retool_mcore.cli.summary import print_evaluation

                print_evaluation(stage_dir(stage, config))

    return run


for _stage, _about in _COMMANDS["stages"].items():
    _command(_stage, help=_about)(_runner(_stage))


@_command("doctor")
def doctor(overrides: list[str] | None = None, dry_run: bool = False) -> int:
    """Report what this machine has and what is missing: versions, devices, adapters, sandbox isolation, memory, disk.
    Exits with 1 when something is missing that a run needs."""
    from retool_mcore.cli import doctor as examination
    from retool_mcore.cli.dry_run import whole

    config = compose("doctor", overrides or ())
    if dry_run:
        print(whole("doctor", config))
        return 0
    return examination.run(config)


@_command("summary")
def summary(run: Path) -> None:
    """Show a run in one table: accuracy before SFT, after SFT and after RL, code ratio, response length, steps,
    minutes."""
    from retool_mcore.cli import summary as report

    report.print_table(run)


@_command("figures")
def figures(runs: list[Path], out: Path | None = None) -> None:
    """Draw a paper's figures, runs over each other: loss, reward and accuracy over the steps, ReTool's six behaviour
    metrics, the places of calls; as PNG, SVG and the numbers as CSV."""
    from retool_mcore.cli import figures as drawing

    print("\n".join(map(str, drawing.draw(runs, out or runs[0] / "figures"))))


_command("plan")(plan)
_command("simulate")(simulate)


@_command("submit")
def submit(words: list[str], after: str | None = None, site: str | None = None, dry_run: bool = False) -> None:
    """Submit stages to Slurm, after a check of the configuration. A job that comes near its time limit, or fails, goes
    back to the queue and on from its last whole checkpoint."""
    from retool_mcore.cluster import submit as submission

    submission.submit(words, after=after, site_name=site, dry_run=dry_run)


@_command("status")
def status(run: Path) -> None:
    """Show where each stage of a run is: step, reward or loss, speed, last whole checkpoint, attempt, and what it waits
    for. Reads files, and asks Slurm about jobs that `retool submit` sent."""
    from retool_mcore.cluster import status as report

    report.print_table(run)


@_command("stop")
def stop_stage(run: Path) -> None:
    """Have the stage of a run that trains end its step, save and stop; a Slurm job of it ends then, and does not go
    back to the queue. The same command that started the stage goes on from there."""
    from retool_mcore.cluster import status as report

    print(f"{report.stop(run)}: it ends its step, saves and stops. `retool status {run}` shows when it has.")


@_command("bundle")
def bundle(run: Path, out: Path | None = None) -> None:
    """Pack what a report of a bug needs: configurations, logs, metrics, stacks and versions, with secrets masked; no
    weights, data or trajectories."""
    from retool_mcore.cli import bundle as pack

    pack.write(run, out)


@_command("view")
def view(
    runs: list[Path],
    host: str = "127.0.0.1",
    port: int = 8008,
    evaluation: str | None = None,
    audit: bool = False,
) -> None:
    """Look at runs in a browser: curves, live and over each other; trajectories with text by role, the mask over the
    tokens, probabilities, the interpreter's output and times; two side by side; failures by their error."""
    from retool_mcore.view import server

    part = f"eval/{evaluation}" if evaluation else "audit" if audit else "rl"
    server.serve(runs, host=host, port=port, part=part)


@_command("replay")
def replay(
    run: Path,
    step: int,
    overrides: list[str] | None = None,
    rollout: bool = False,
    policy_step: int | None = None,
    dry_run: bool = False,
) -> None:
    """Repeat one recorded step: its trajectories through the trainer without a rollout engine, metrics beside the
    recorded ones; or, with --rollout, its prompts and seeds through the rollout engine without a trainer."""
    from retool_mcore.cli import replay as again

    again.run(run, step, rollout=rollout, policy_step=policy_step, overrides=overrides or (), dry_run=dry_run)


for _function, _examples in QUESTIONS.items():
    _lines = "\n".join(f"  {example}" for example in _examples)
    app.command(epilog=f"\b\nExamples:\n{_lines}")(_function)


services = typer.Typer(name="sandbox", help="Sandbox services, which run programs for other machines.")
app.add_typer(services)


@_command("sandbox serve", services)
def serve(
    overrides: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    workers: int | None = None,
    queue: int = 1024,
    register: Path | None = None,
    advertise: str | None = None,
) -> None:
    """Run programs for whoever asks, as SandboxFusion's /run_code does, in the sandbox of this machine. Other
    machines need the token in the address that --register writes. SIGTERM lets what runs finish first."""
    from retool_mcore.sandbox.service import serve as service

    config = OmegaConf.to_container(compose("doctor", overrides or ()).sandbox)
    config |= {} if workers is None else {"workers": workers}
    asyncio.run(service.serve(config, host=host, port=port, max_waiting=queue, register=register, advertise=advertise))


@_command("sandbox probe", services)
def probe_service(url: str) -> None:
    """Run a program in a service and show how it is: isolation, programs that run and wait, time to answer."""
    from retool_mcore.sandbox.service.serve import probe_url

    print(asyncio.run(probe_url(url)))


coldstart = typer.Typer(name="coldstart", help="Cold-start data: from reasoning in text to verified traces with code.")
app.add_typer(coldstart)


@_command("coldstart run", coldstart)
def run_coldstart(config: Path, overrides: list[str] | None = None) -> None:
    """Read problems with reasoning, verify, rewrite with a model, run every program, verify again, and write parquet
    for `retool sft` with a report. A second start goes on after the last finished row and model call."""
    from retool_mcore.coldstart import command

    command.run(config, overrides or [])


@_command("coldstart serve", coldstart, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_coldstart(
    context: typer.Context,
    config: Path,
    purpose: str = "rewrite",
    checkpoint: str | None = None,
    show: bool = False,
) -> None:
    """Serve the model of a configuration with vLLM, at the address that the configuration names. Further options go
    to `vllm serve`."""
    from retool_mcore.coldstart import command

    command.serve(config, purpose, checkpoint, context.args, show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code: 0, 1 (a stage failed), 2 (wrong input), 75 (asked to
    stop at a step, and did), 128 + signal (stopped)."""
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        private_files()
        allow_open_files()
        return app(args=arguments or ["--help"], prog_name="retool", standalone_mode=False) or 0
    except (UserError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        print(f"retool: {message}", file=sys.stderr)
        return 2
    except StageFailed as error:
        print(f"retool: {error}", file=sys.stderr)
        return 1
    except Paused as error:
        print(error)
        return EXIT_CODE
    except Stopped as error:
        print(f"retool: {error}; the next start goes on from the last complete checkpoint.", file=sys.stderr)
        return 128 + error.signum
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
