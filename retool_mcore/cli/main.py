"""The command line, `retool`, and its commands from `prepare` to `sandbox`.

Only composes a configuration and hands it to launch.py; nothing here imports torch, so --help is quick.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from omegaconf import OmegaConf
from typer import Argument, Option
from typer.exceptions import TyperException

from retool_mcore.cli import stages  # noqa: F401 - registers the first commands of the list
from retool_mcore.cli.app import (
    Context,
    DryRun,
    Host,
    Overrides,
    PolicyOf,
    PolicyOverrides,
    Run,
    Runs,
    RunsOrPlan,
    app,
    command,
)
from retool_mcore.cli.plan import plan
from retool_mcore.cli.questions import QUESTIONS
from retool_mcore.cli.simulate import simulate
from retool_mcore.cli.try_reward import try_reward
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files, private_files
from retool_mcore.runner.launch import Paused, StageFailed, Stopped
from retool_mcore.state.stop import EXIT_CODE


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


@command("doctor", "retool doctor", "retool doctor sandbox=fusion parallel=2x8-80g")
def doctor(overrides: Overrides = None, dry_run: DryRun = False) -> int:
    """Report what this machine has and what is missing: versions, devices, adapters, sandbox isolation, memory, disk.
    Exits with 1 when something is missing that a run needs."""
    from retool_mcore.cli import doctor as examination
    from retool_mcore.cli.dry_run import whole

    config = compose("doctor", overrides or ())
    if dry_run:
        print(whole("doctor", config))
        return 0
    return examination.run(config)


@command("summary", "retool summary runs/quickstart", "retool summary runs/mine")
def summary(run: Run) -> None:
    """Show a run in one table: accuracy before SFT, after SFT and after RL, code ratio, response length, steps,
    minutes."""
    from retool_mcore.cli import summary as report

    report.print_table(run)


@command("figures", "retool figures runs/quickstart", "retool figures runs/tool runs/text --out compared")
def figures(
    runs: Runs,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Default: figures in the first run.")] = None,
) -> None:
    """Draw a paper's figures, runs over each other: loss, reward and accuracy over the steps, ReTool's six behaviour
    metrics, the places of calls; as PNG, SVG and the numbers as CSV."""
    from retool_mcore.cli import figures as drawing

    print("\n".join(map(str, drawing.draw(runs, out or runs[0] / "figures"))))


command(
    "plan",
    "retool plan model=qwen2.5-32b parallel=2x8-80g data=math recipe=dapo",
    "retool plan --model /models/mine --gpus 4 --gpu-memory 141 --max-length 16384 --sft "
    "--write configs/parallel/mine.yaml",
)(plan)

command(
    "simulate",
    "retool simulate model=qwen2.5-32b parallel=2x8-80g data=math --gpus 16,64,256,1024",
    "retool simulate model=qwen2.5-32b parallel=2x8-80g data=math --gpus 16,128 --lengths-of runs/r32 --json r32.json",
)(simulate)


@command(
    "submit",
    "retool submit sft rl eval name=r32 model=qwen2.5-32b parallel=2x8-80g data=math",
    "retool submit rl name=r32 --after sft --site mycluster --dry-run",
)
def submit(
    words: Annotated[
        list[str],
        Argument(
            metavar="STAGE... [KEY=VALUE]...",
            help="sft, rl, eval and export, each started once the one before has ended well; or tensorboard, or "
            "sandbox. "
            "Overrides go to every stage.",
        ),
    ],
    after: Annotated[
        str | None, Option(metavar="STAGE|JOBID", help="What the first stage waits for, submitted before.")
    ] = None,
    site: Annotated[
        str | None, Option(metavar="NAME", help="File of configs/site/; default: RETOOL_SITE, else default.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the sbatch commands; submit nothing.")] = False,
) -> None:
    """Submit stages to Slurm, after a check of the configuration. A job that comes near its time limit, or fails, goes
    back to the queue and on from its last whole checkpoint."""
    from retool_mcore.cluster import submit as submission

    submission.submit(words, after=after, site_name=site, dry_run=dry_run)


@command("status", "retool status runs/quickstart", "watch -n 10 retool status runs/r32")
def status(run: Run) -> None:
    """Show where each stage of a run is: step, reward or loss, speed, last whole checkpoint, attempt, and what it waits
    for. Reads files, and asks Slurm about jobs that `retool submit` sent."""
    from retool_mcore.cluster import status as report

    report.print_table(run)


@command("stop", "retool stop runs/r32")
def stop_stage(run: Run) -> None:
    """Have the stage of a run that trains end its step, save and stop; a Slurm job of it ends then, and does not go
    back to the queue. The same command that started the stage goes on from there."""
    from retool_mcore.cluster import status as report

    print(f"{report.stop(run)}: it ends its step, saves and stops. `retool status {run}` shows when it has.")


@command("bundle", "retool bundle runs/quickstart", "retool bundle runs/r32 --out report.tar.gz")
def bundle(
    run: Run, out: Annotated[Path | None, Option(metavar="FILE", help="Default: bundle-RUN.tar.gz, here.")] = None
) -> None:
    """Pack what a report of a bug needs: configurations, logs, metrics, stacks and versions, with secrets masked; no
    weights, data or trajectories."""
    from retool_mcore.cli import bundle as pack

    pack.write(run, out)


@command(
    "view", "retool view runs/seed1 runs/seed2", "retool view study.yaml", "retool view runs/r32 --eval rl --port 8010"
)
def view(
    runs: RunsOrPlan,
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(metavar="PORT", help="TCP port.", min=1, max=65535)] = 8008,
    evaluation: Annotated[
        str | None, Option("--eval", metavar="LABEL", help="An evaluation's trajectories, of RUN/eval/LABEL.")
    ] = None,
    audit: Annotated[bool, Option("--audit", help="The trajectories that the mask audit stopped at.")] = False,
) -> None:
    """Look at runs in a browser: why they do not learn; curves, live and over each other; the arms of a plan with its
    verdict; trajectories with text by role, the mask over the tokens, probabilities, the interpreter's output and
    times; two side by side; failures by their error."""
    from retool_mcore.cli.study import study_of
    from retool_mcore.view import server

    part = f"eval/{evaluation}" if evaluation else "audit" if audit else "rl"
    folders, study = study_of(runs)
    server.serve(folders, host=host, port=port, part=part, study=study)


@command("chat", "retool chat runs/quickstart", "retool chat /models/Qwen2.5-1.5B-Instruct parallel=1gpu")
def chat(
    target: PolicyOf,
    overrides: PolicyOverrides = None,
    system: Annotated[
        str | None, Option(metavar="TEXT", help="System message, in place of the prompt template's.")
    ] = None,
    raw: Annotated[bool, Option("--raw", help="Ask without the prompt template (data.prompt).")] = False,
    context: Context = None,
) -> None:
    """Talk to a policy in the terminal: its text as it comes, its programs, and what they print."""
    from retool_mcore.cli import chat as conversation

    conversation.run(target, overrides or (), system=system, raw=raw, context=context)


@command(
    "serve",
    "retool serve runs/quickstart",
    "RETOOL_API_KEY=secret retool serve /models/Qwen2.5-1.5B-Instruct parallel=1gpu --host 0.0.0.0 --tools client",
)
def serve_policy(
    target: PolicyOf,
    overrides: PolicyOverrides = None,
    tools: Annotated[
        str, Option(metavar="server|client", help="Who runs the tools: this server, or the client, which gets calls.")
    ] = "server",
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(metavar="PORT", help="TCP port; 0: a free one.", min=0, max=65535)] = 8000,
    raw: Annotated[bool, Option("--raw", help="Questions without the prompt template (data.prompt).")] = False,
    context: Context = None,
    timeout: Annotated[float, Option(metavar="SECONDS", help="Of a request.", min=1)] = 600.0,
) -> None:
    """Serve a policy as OpenAI's API: chat completions, with its tools or the client's; completions; models; health;
    metrics. RETOOL_API_KEY is the key that clients show. SIGTERM lets what runs finish first."""
    from retool_mcore.cli import serve as front

    front.run(
        target, overrides or (), tools=tools, host=host, port=port, raw=raw, context=context, timeout_s=timeout
    )  # fmt: skip


@command(
    "replay",
    "retool replay runs/quickstart --step 30",
    "retool replay runs/quickstart --step 30 --rollout",
    "retool replay runs/r32 --step 101 verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768",
)
def replay(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run in which `retool rl` has ended a step.")],
    step: Annotated[int, Option(metavar="N", help="Which step.", min=1)],
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Changes to the run's own rl/config.yaml.")
    ] = None,
    rollout: Annotated[
        bool, Option("--rollout", help="The step's prompts through the rollout engine, without a trainer.")
    ] = False,
    policy_step: Annotated[
        int | None, Option(metavar="K", help="Policy to begin with; default: that of step N-1.", min=0)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Repeat one recorded step: its trajectories through the trainer without a rollout engine, metrics next to the
    recorded ones; or, with --rollout, its prompts and seeds through the rollout engine without a trainer."""
    from retool_mcore.cli import replay as again

    again.run(run, step, rollout=rollout, policy_step=policy_step, overrides=overrides or (), dry_run=dry_run)


for _function, _examples in QUESTIONS.items():
    command(_function.__name__, *_examples)(_function)

rewards = typer.Typer(name="reward", help="Rewards of one's own.")
app.add_typer(rewards)

command(
    "try",
    "retool reward try runs/mine --text answer.txt --row 3",
    "retool reward try runs/mine/data/train/my/train.parquet --text answers.jsonl recipe.reward.name=mine.brief",
    group=rewards,
)(try_reward)


services = typer.Typer(name="sandbox", help="Sandbox services, which run programs for other machines.")
app.add_typer(services)


@command(
    "serve",
    "retool sandbox serve",
    "retool sandbox serve --host 0.0.0.0 --workers 128 --register runs/sandbox-hosts sandbox.memory_mb=2048",
    group=services,
)
def serve(
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(metavar="PORT", help="TCP port; 0: a free one.", min=0, max=65535)] = 8080,
    workers: Annotated[
        int | None,
        Option(metavar="N", help="Programs at once; default: sandbox.workers, or 64 and one a core.", min=1),
    ] = None,
    queue: Annotated[int, Option(metavar="N", help="Runs that may wait; more are refused for now.", min=0)] = 1024,
    register: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write the address there, for sandbox.hosts_from.")
    ] = None,
    advertise: Annotated[
        str | None, Option(metavar="NAME", help="This machine's name in that address; default: its host name.")
    ] = None,
) -> None:
    """Run programs for whoever asks, as SandboxFusion's /run_code does, in the sandbox of this machine. Other
    machines need the token in the address that --register writes. SIGTERM lets what runs finish first."""
    from retool_mcore.sandbox.service import serve as service

    config = OmegaConf.to_container(compose("doctor", overrides or ()).sandbox)
    config |= {} if workers is None else {"workers": workers}
    asyncio.run(service.serve(config, host=host, port=port, max_waiting=queue, register=register, advertise=advertise))


@command("probe", "retool sandbox probe http://node1:8080", group=services)
def probe_service(
    url: Annotated[str, Argument(metavar="URL", help="Address of a sandbox service or of a SandboxFusion.")],
) -> None:
    """Run a program in a service and show how it is: isolation, programs that run and wait, time to answer."""
    from retool_mcore.sandbox.service.serve import probe_url

    print(asyncio.run(probe_url(url)))


coldstart = typer.Typer(name="coldstart", help="Cold-start data: from reasoning in text to verified traces with code.")
app.add_typer(coldstart)
ColdstartFile = Annotated[Path, Argument(metavar="FILE", help="As those in configs/coldstart/.")]


@command(
    "run",
    "retool coldstart run configs/coldstart/openthoughts.yaml source.path=thoughts.parquet",
    group=coldstart,
)
def run_coldstart(
    config: ColdstartFile,
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Values of the file's keys, as in seed=1.")
    ] = None,
) -> None:
    """Read problems with reasoning, verify, rewrite with a model, run every program, verify again, and write parquet
    for `retool sft` with a report. A second start goes on after the last finished row and model call."""
    from retool_mcore.coldstart import command

    command.run(config, overrides or [])


@command(
    "serve",
    "retool coldstart serve configs/coldstart/openthoughts.yaml --print",
    "retool coldstart serve configs/coldstart/openthoughts.yaml --tensor-parallel-size 8",
    group=coldstart,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve_coldstart(
    context: typer.Context,
    config: ColdstartFile,
    purpose: Annotated[str, Option(metavar="rewrite|judge", help="Whose model to serve.")] = "rewrite",
    checkpoint: Annotated[
        str | None, Option(metavar="FOLDER", help="Weights; default: the model's name, from the hub.")
    ] = None,
    show: Annotated[bool, Option("--print", help="Print the command; start nothing.")] = False,
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
