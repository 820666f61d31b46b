"""`retool status RUN`: where each stage is and what it waits for, from the run's files and, where there is one, Slurm.

Reads while others write: a half-written line does not count, and a file that goes away meanwhile is as if it had never
been there. Works for a run on a laptop too, where processes tell whether a stage runs.
"""

import statistics
import time
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from retool_mcore.cluster import slurm
from retool_mcore.cluster.chain_report import print_chain
from retool_mcore.cluster.job_signals import PAUSABLE
from retool_mcore.cluster.submit import STAGES, read_jobs
from retool_mcore.errors import UserError, no_run
from retool_mcore.explain.report import top_line
from retool_mcore.files import read_json_lines
from retool_mcore.runner import processes
from retool_mcore.runner.phase_line import duration, phase_line
from retool_mcore.runner.stage_log import last_error
from retool_mcore.state import alarms, chain, checkpoints, heartbeat
from retool_mcore.state import stop as stop_request
from retool_mcore.state.progress import attempt_files, metric, read_steps, total_steps

ERROR_LENGTH = 200  # characters of a failure in the table
NO_CHAIN = chain.Chain([], {}, [])
PIPED_WIDTH = 160  # columns when the output is no terminal
# One stage as strings, in the order of TITLES; "-" for what there is not.
Row = namedtuple("Row", "stage state step last step_s tokens_per_s checkpoint attempt now")
TITLES = ("stage", "state", "step", "last", "s/step", "tokens/s", "last checkpoint", "attempt", "now")
REASONS = {  # Slurm's, of a job that waits
    "Dependency": "waits for job {after} to end well",
    "Resources": "waits for free nodes (Slurm: Resources)",
    "Priority": "waits for free nodes (Slurm: Priority)",
    "BeginTime": "sent back to the queue, starts again soon (Slurm: BeginTime)",
}


def print_table(run: Path, console: Console | None = None) -> None:
    """Prints the table of `rows`. Raises UserError as it does."""
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PIPED_WIDTH)
    table = Table(title=str(run))
    for title in TITLES:
        right = title in ("step", "s/step", "tokens/s")
        table.add_column(title, justify="right" if right else "left", no_wrap=title in ("stage", "state"))
    for row in (stages := rows(run)):
        table.add_row(*row)
    console.print(table)
    for row in stages:
        own = [f"{row.stage}/{name}" for name in ("log.txt", "ranks", "stacks/*")]
        jobs = [f"slurm/*-{name}" for name in (f"{row.stage}.out", "ray.log", "ray")[: 3 if row.stage == "rl" else 1]]
        paths = [str(path) for pattern in own + jobs for path in sorted(run.glob(pattern))]
        if paths and row.state != "complete":
            console.print(f"{row.stage}: read {', '.join(paths)}", markup=False, soft_wrap=True)
    for row in stages:
        print_chain(
            row.stage, _quietly(partial(chain.read, run / row.stage, total_steps(run / row.stage)), NO_CHAIN), console
        )
    if line := _quietly(lambda: alarms.count(run / "rl"), ""):
        console.print(f"rl: {line}")
    if line := _explained(run):
        console.print(f"explain: {line}", markup=False, soft_wrap=True)


def _explained(run: Path) -> str:
    """The first cause that `retool explain` names, "" without any and where nothing can be read yet."""
    try:
        return top_line(run)
    except (OSError, UserError):
        return ""


def rows(run: Path, now_s: float | None = None) -> list[Row]:
    """The stages that were begun or submitted, in the order of the pipeline.

    Args:
        now_s: seconds since the epoch, for ages; None: the clock.

    Raises:
        UserError: no such folder, or one that holds no stage.
    """
    if not run.is_dir():
        raise no_run(run)
    now_s = time.time() if now_s is None else now_s
    submitted = [job for job in read_jobs(run) if job["stage"] in STAGES]
    states = slurm.states([job["job"] for job in submitted])
    jobs = {job["folder"]: job for job in submitted}  # the newest of each stage, but one that is at work before all
    for job in submitted:
        if (state := states.get(job["job"])) is not None and state.state in slurm.AT_WORK:
            jobs[job["folder"]] = job
    evals = sorted(path.name for path in (run / "eval").glob("*/"))
    order = ["prepare", "sft", "rl", *(f"eval/{label}" for label in evals), "export"]
    order += [folder for folder in jobs if folder not in order]
    begun = [folder for folder in order if (run / folder).is_dir() or folder in jobs]
    if not begun:
        raise UserError(f"{run} holds no stage yet: start one, as in `retool prepare name={run.name}`.")
    return [_row(run, folder, jobs.get(folder), states, now_s) for folder in begun]


def stop(run: Path) -> str:
    """Ask the stage of `run` that trains to stop after its step; the stage.

    Raises:
        UserError: none of its stages is at a step now.
    """
    stages = {row.stage: row for row in rows(run) if row.stage in PAUSABLE}
    for stage, row in stages.items():
        if row.state in ("running", "stopping"):
            stop_request.request(run / stage, stop_request.REQUEST)
            return stage
    states = ", ".join(f"{stage} is {row.state}" for stage, row in stages.items()) or "it has neither sft nor rl"
    raise UserError(f"nothing of {run} trains now ({states}): `scancel JOB` takes a job out of the queue.")


def _row(run: Path, stage: str, job: dict | None, states: dict[str, slurm.JobState], now_s: float) -> Row:
    folder = run / stage
    steps = _quietly(lambda: read_steps(folder), {})
    attempt = max(_quietly(lambda: attempt_files(folder), {}), default=0)
    records = _quietly(lambda: read_json_lines(folder / "attempts.jsonl"), [])
    ended = {record["attempt"]: record for record in records if isinstance(record.get("attempt"), int)}
    open_attempt = attempt > 0 and attempt not in ended
    job_state = states.get(job["job"]) if job else None
    outcome = str(ended[max(ended)].get("outcome", "-")) if ended else None

    state, now = _from_files(folder, steps, open_attempt, outcome, now_s)
    if job_state is not None and job_state.state == "RUNNING":
        state, now = "running", _doing(folder, steps, now_s) if open_attempt else "the job prepares its nodes"
    elif job_state is not None and job_state.active:
        state, now = _waiting(job_state, job)
    elif job_state is not None and state not in ("complete", "running"):
        if state == "unknown":
            state, now = "ended", "killed before it could say how it ended"
        slurm_says = f"Slurm: {job_state.state}, log: {job['log']}"
        now = slurm_says if now == "-" else f"{now} ({slurm_says})"
    if state == "running" and stop_request.requested(folder):
        after = "goes back to the queue" if stop_request.reason(folder) == stop_request.TIME_LIMIT else "stops"
        state, now = "stopping", f"ends its step and saves, then {after}"
    if job is not None and now != "-":
        now = f"job {job['job']}: {now}"

    recent = list(steps.values())[-chain.RECENT_STEPS :]
    total = total_steps(folder)
    step_s = _median(recent, chain.seconds_of, "{:.1f}")
    if state == "running" and total and step_s != "-":
        now += f"; {duration((total - max(steps)) * float(step_s))} left of the stage"
    return Row(
        stage=stage,
        state=state,
        step=(f"{max(steps)}" if steps else "0") + (f"/{total}" if total else "") if steps or total else "-",
        last=_last(steps),
        step_s=step_s,
        tokens_per_s=_median(recent, _tokens_per_s, "{:.0f}"),
        checkpoint=_quietly(lambda: _checkpoint(folder / "checkpoints", now_s), "-"),
        attempt=(f"{attempt}" + (f", last ended: {outcome}" if open_attempt and outcome else "")) if attempt else "-",
        now=now,
    )


def _from_files(folder: Path, steps: dict, open_attempt: bool, outcome: str | None, now_s: float) -> tuple[str, str]:
    """(state, what it does or waits for) of a stage without Slurm."""
    if open_attempt:
        stage_id = _quietly(lambda: (folder / ".lock").read_text().strip(), "")
        if stage_id and processes.find(stage_id):
            return "running", _doing(folder, steps, now_s)
        paths = [folder / "log.txt", *(folder / "metrics").glob("*"), *(folder / "heartbeat").glob("*")]
        sign = duration(now_s - max((_changed(path, 0.0) for path in paths), default=0.0))
        return "unknown", f"killed, or runs on another machine; last output {sign} ago"
    if outcome is None:
        return "not started", "-"
    if outcome == "failed":
        log = folder / "log.txt"
        error = _quietly(lambda: last_error(log)[0], "")
        return outcome, f"{error[:ERROR_LENGTH]} (see {log})".strip()
    if outcome != "complete":
        return outcome, "the next start goes on from the last checkpoint"
    return "complete", "-"


def _waiting(state: slurm.JobState, job: dict) -> tuple[str, str]:
    if state.state != "PENDING":
        return state.state.lower(), f"Slurm: {state.reason or state.state}"
    reason = f"Slurm: {state.reason or 'no reason given yet'}"
    return "queued", REASONS.get(state.reason, reason).format(after=job.get("after"))


def _doing(folder: Path, steps: dict, now_s: float) -> str:
    """The step that runs now, since when (verl writes a line as each step ends), and its phase."""
    phase = _quietly(lambda: phase_line(folder, now_s), "")
    if phase.startswith(heartbeat.EVALUATION):  # it has no steps
        return phase
    newest = next(reversed(attempt_files(folder).values()), None)
    began = newest is not None and _quietly(lambda: newest.stat().st_size, 0) > 0
    doing = f"step {max(steps, default=0) + 1}" if began else "starting"
    since = duration(now_s - (_changed(newest, now_s) if newest else now_s))
    return f"{doing} since {since}" + (phase and f": {phase}")


def _last(steps: dict[int, dict[str, float]]) -> str:
    """The last reward, else the last loss, with its name."""
    for label, name in (("reward", "critic/score/mean"), ("loss", "train/loss"), ("val", "val/loss")):
        values = [value for data in steps.values() if (value := metric(data, name)) is not None]
        if values:
            return f"{label} {values[-1]:.4g}"
    return "-"


def _tokens_per_s(data: dict[str, float]) -> float | None:
    """Return the whole job's tokens a second: verl's own perf/throughput is a GPU's share."""
    tokens, seconds = metric(data, "perf/total_num_tokens"), metric(data, "perf/time_per_step")
    return tokens / seconds if tokens and seconds else metric(data, "tokens_per_second")


def _median(steps: list[dict[str, float]], figure: Callable, form: str) -> str:
    values = [value for data in steps if (value := figure(data))]
    return form.format(statistics.median(values)) if values else "-"


def _checkpoint(root: Path, now_s: float) -> str:
    last = checkpoints.latest(root)
    best = checkpoints.best(root)
    error = f" ± {best['se']:.2g}" if best and "se" in best else ""
    if last is None:
        return "-"
    return f"step {checkpoints.step_of(last)}, {duration(now_s - (last / checkpoints.MARK).stat().st_mtime)} ago" + (
        f", best: step {best['step']} ({best['metric']} {best['value']:.4g}{error})" if best else ""
    )


def _quietly(read: Callable[[], Any], otherwise: Any) -> Any:
    """Return the value of `read`; `otherwise` when a file is missing or has just been removed."""
    try:
        return read()
    except OSError:
        return otherwise


def _changed(path: Path, otherwise: float) -> float:
    return _quietly(lambda: path.stat().st_mtime, otherwise)
