"""`retool submit`: checks what can be checked on a login node, then hands slurm/STAGE.sbatch to sbatch.

Writes RUN/slurm/jobs.jsonl, one line a job: {job, stage, folder, submitted, after, site, log, command}. `--after` and
`retool status` read it.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.cluster import forecast, inputs_there, slurm
from retool_mcore.cluster.site import Site, load_site
from retool_mcore.config import compose, own_words
from retool_mcore.errors import UserError
from retool_mcore.files import read_json_lines
from retool_mcore.preflight import disk, relations
from retool_mcore.preflight.memory import asked_gib
from retool_mcore.recipes.pipeline import beside, check_slurm
from retool_mcore.runner.launch import stage_dir

ROOT = Path(__file__).parents[2]
STAGES = ("sft", "rl", "eval", "export")
SERVICES = ("tensorboard", "sandbox")  # jobs next to a run; no stage of it


@dataclass(frozen=True)
class Job:
    """One sbatch command; `after`: the job that must have ended well before, None for none."""

    stage: str
    config: DictConfig
    site: Site
    overrides: tuple[str, ...]
    after: str | None

    @property
    def run_dir(self) -> Path:
        return Path(self.config.run_dir)

    @property
    def log(self) -> Path:
        """Where Slurm writes; %j is the job's number."""
        return self.run_dir / "slurm" / f"%j-{self.stage}.out"

    def command(self) -> list[str]:
        flags = ["--parsable", f"--output={self.log}", *self.site.flags]
        for name in ("partition", "account", "qos", "time"):
            if value := getattr(self.site, name):
                flags.append(f"--{name}={value}")
        if self.stage in STAGES:
            flags.append(f"--nodes={asked_nodes(self.stage, self.config)}")
            if self.site.gpu_gres:
                flags.append(f"--gpus-per-node={asked_gpus(self.config, self.site)}")
            if not any(flag.startswith("--mem") for flag in self.site.flags) and (gib := asked_gib(self.config)):
                flags.append(f"--mem={gib}G")
        if self.after:
            # A job whose predecessor failed would otherwise wait for ever.
            flags += [f"--dependency=afterok:{self.after}", "--kill-on-invalid-dep=yes"]
        arguments = {"tensorboard": [str(self.run_dir)], "sandbox": []}.get(self.stage, self.overrides)
        return ["sbatch", *flags, str(self.script()), *arguments]

    def script(self) -> Path:
        """slurm/STAGE.sbatch; where Slurm counts no GPUs, and would refuse to be asked for them, a copy in the run's
        folder that asks for none."""
        script = ROOT / "slurm" / f"{self.stage}.sbatch"
        return script if self.site.gpu_gres or self.stage not in STAGES else self.log.with_name(script.name)

    def environment(self) -> dict[str, str]:
        """Return the variables that the batch script needs and cannot find out; sbatch passes its whole environment to
        the job."""
        return {"RETOOL_ROOT": str(ROOT), "RETOOL_SITE": self.site.name, "SBATCH_EXPORT": "ALL"}


def submit(
    words: Sequence[str], *, after: str | None = None, site_name: str | None = None, dry_run: bool = False
) -> None:
    """Submits a chain: each stage starts once the one before has ended well.

    Args:
        words: stages in order, and overrides, which go to each of them that has their key.
        after: what the first waits for: a job's number, or a stage of this run that was submitted before.

    Raises:
        UserError: wrong input, no sbatch here, or sbatch refused.
    """
    site = load_site(site_name)
    stages = [word for word in words if "=" not in word]
    overrides = tuple(word for word in words if "=" in word)
    check_stages(stages)
    own = {stage: tuple(own_words(stage, overrides, stages)) for stage in stages}
    configs = {stage: _compose(stage, own[stage], site) for stage in stages}
    if not dry_run and shutil.which("sbatch") is None:
        raise UserError("sbatch is not here: submit on a login node of the cluster, or look with --dry-run.")
    first, limit = configs[stages[0]], forecast.limit(site)
    previous = find_predecessor(after, Path(first.run_dir), dry_run) if after else None
    earlier = [after] if previous and after in STAGES else []
    inputs = {}
    for stage in stages if stages[0] not in SERVICES else ():  # all, before the first is sent
        inputs[stage] = look(stage, configs[stage], site, earlier, bool(previous) and after not in STAGES, dry_run)
        earlier.append(stage)
    for stage in stages:
        job = Job(stage, configs[stage], site, own[stage], previous)
        if stage in STAGES and (warned := forecast.warning(stage, job.config, site, limit)):
            print(f"{'# ' if dry_run else ''}{warned}")
        if dry_run:
            print(summary(job, limit, inputs.get(stage, "")))
            print(" ".join(f"{name}={shlex.quote(value)}" for name, value in job.environment().items()), end=" ")
            print(shlex.join(job.command()))
            previous = pending(stage)
        else:
            for other in active_jobs(job.run_dir, stage):
                print(f"{stage}: job {other} is queued or running already; while it runs, another is refused")
            previous = send(job)
    if dry_run:
        print(chain_disk(configs), end="")
    else:
        print(f"to watch it: retool status {shlex.quote(str(first.run_dir))}")


def look(
    stage: str, config: DictConfig, site: Site, earlier: Sequence[str], unknown: bool, dry_run: bool = False
) -> str:
    """Say what `inputs_there.check` found; a dry run reports what a submission refuses."""
    try:
        hidden = inputs_there.check(stage, config, site, earlier, unknown)
    except UserError as error:
        if not dry_run:
            raise UserError(
                f"{str(error).removesuffix('.')} ({stage}; where only the cluster's nodes see it: sbatch "
                f"slurm/{stage}.sbatch with the same words)."
            ) from error
        return f"refused: {error}"
    if hidden and not dry_run:
        print(f"{stage}: not seen from here, so not looked at: {hidden}")
    return f"not seen from here: {hidden}" if hidden else "there, or written by a stage before"


def chain_disk(configs: Mapping[str, DictConfig]) -> str:
    """The disk that sft and rl of one chain take together, as a line of YAML comments; "" for other chains."""
    if not {"sft", "rl"} <= set(configs) or not disk.follows_own_sft(configs["rl"]):
        return ""
    shape = forecast.shape_of(configs["rl"])
    return f"# disk of {disk.chain_line(configs, shape.parameters)}\n" if shape else ""


def pending(stage: str) -> str:
    """Stands in a dry run for the number that Slurm would give to the job of `stage`."""
    return f"JOBID_OF_{stage.upper()}"


def check_stages(stages: Sequence[str]) -> None:
    known = (*STAGES, *SERVICES)
    if not stages or (unknown := [stage for stage in stages if stage not in known]):
        what = f"there is no job {unknown[0]!r}" if stages else "which stage?"
        raise UserError(f"{what}: submit one or more of {', '.join(known)}; an override is written KEY=VALUE.")
    if len(set(stages)) < len(stages):
        raise UserError("each stage can be named once in a chain.")
    if len(stages) > 1 and (services := [stage for stage in stages if stage in SERVICES]):
        raise UserError(f"{services[0]} runs until it is cancelled, so nothing can wait for it: submit it alone.")


def asked_nodes(stage: str, config: DictConfig) -> int:
    return 1 if stage == "eval" else config.parallel.nodes + beside(config)  # an evaluation's engine has one node


def asked_gpus(config: DictConfig, site: Site) -> int:
    """GPUs to ask for on each node; a run on CPU takes what the site says, by default none."""
    if config.parallel.device == "cuda":
        return config.parallel.gpus_per_node
    return site.gpus_per_node or 0


def check_size(stage: str, config: DictConfig, site: Site) -> None:
    """Refuses a configuration that is for other nodes than the site gives.

    Raises:
        UserError: the numbers of nodes, or of GPUs a node, differ.
    """
    asked = {"nodes": asked_nodes(stage, config), "gpus_per_node": asked_gpus(config, site)}
    for key, count in asked.items():
        site_value = getattr(site, key)
        if site_value is not None and site_value != count and (key, stage) != ("nodes", "eval"):
            raise UserError(
                f"{stage}: parallel.{key}={count}, but the site {site.name} gives {key}: {site_value}; "
                "choose another parallel=, or another site."
            )


def _compose(stage: str, overrides: Sequence[str], site: Site) -> DictConfig:
    if stage in SERVICES:
        return compose("doctor", overrides)
    chosen = any(word.lstrip("+").startswith(("parallel=", "parallel.")) for word in overrides)
    try:
        config = compose(stage, overrides)
        if site.nodes and not chosen and stage != "eval":  # as cluster/job.py does with the nodes that it finds
            config = compose(stage, [*overrides, f"parallel.nodes={site.nodes - beside(config)}"])
        relations.check(stage, config)
    except UserError as error:
        raise UserError(f"{stage}: {error}") from error
    check_slurm(config)
    check_size(stage, config, site)
    return config


def summary(job: Job, limit: forecast.Limit, inputs: str) -> str:
    """Describe the job in a few lines of YAML comments. inputs: what `look` found."""
    config = job.config
    lines = [f"# {job.stage}: {job.run_dir}", f"# site: {job.site.name}, time limit: {limit.words}"]
    if job.stage in STAGES:
        layout = config.parallel
        nodes = f"{layout.nodes} + {n} for rollouts" if (n := beside(config)) else asked_nodes(job.stage, config)
        lines.append(f"# nodes: {nodes}, GPUs on each: {asked_gpus(config, job.site)}, device: {layout.device}")
        parts = [f"policy: {config.get('init_from') or config.get('policy_path')}"]
        if job.stage != "eval":  # the others have a trainer
            parts.append(f"TP {layout.tp} x PP {layout.pp}")
        if job.stage in ("rl", "eval"):
            parts.append(f"rollout TP {layout.rollout_tp}")
        lines.append(f"# {', '.join(parts)}")
        if train := config.get("train"):
            steps = train.steps or f"those of {train.epochs} epochs"
            lines.append(f"# steps: {steps}, batch: {train.batch}, learning rate: {train.lr}")
        lines += [f"# {line}" for line in forecast.lines(job.stage, config, limit)]
        lines.append(f"# inputs: {inputs}")
    return "\n".join(lines)


def find_predecessor(after: str, run_dir: Path, dry_run: bool = False) -> str | None:
    """The number of the job that `after` means; None when that stage is complete already.

    Raises:
        UserError: Slurm does not know the job; the stage was not submitted, or its jobs have ended without success.
    """
    if after.replace("_", "", 1).isdecimal():  # 25, or 25_1 of an array
        if not dry_run and after not in slurm.states([after]):  # sbatch takes any number, and then waits for nothing
            raise UserError(f"Slurm knows no job {after}: give the number of one that is queued or running.")
        return after
    if after not in STAGES:
        raise UserError(f"--after {after}: give a job's number or one of {', '.join(STAGES)}.")
    if active := active_jobs(run_dir, after):
        return active[-1]
    if any((run_dir / after).rglob("COMPLETE") if after == "eval" else (run_dir / after).glob("COMPLETE")):
        print(f"{after} is complete already: nothing to wait for.")
        return None
    if dry_run:
        return pending(after)
    raise UserError(f"no {after} job of {run_dir} is queued or running: submit it first, or give a job's number.")


def active_jobs(run_dir: Path, stage: str) -> list[str]:
    """The jobs of a run's stage that are queued or running, in the order of submission."""
    jobs = [job["job"] for job in read_jobs(run_dir) if job["stage"] == stage]
    states = slurm.states(jobs)
    return [job for job in jobs if job in states and states[job].active]


def send(job: Job) -> str:
    """Submits one job and records it; returns its number.

    Raises:
        UserError: sbatch refused; the message is sbatch's own.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)  # slurmd drops the output when the folder is missing
    if job.script().parent == job.log.parent:
        lines = (ROOT / "slurm" / job.script().name).read_text().splitlines(keepends=True)
        job.script().write_text("".join(line for line in lines if not line.startswith("#SBATCH --gpus-per-node")))
    command = job.command()
    done = subprocess.run(command, env={**os.environ, **job.environment()}, capture_output=True, text=True)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UserError(f"{job.stage}: sbatch refused: {reason}. The command was: {shlex.join(command)}")
    number = done.stdout.strip().split(";")[0]  # JOBID or JOBID;CLUSTER
    log = str(job.log).replace("%j", number)
    record(job.stage, job.config, number, log, after=job.after, site=job.site.name, command=shlex.join(command))
    print(f"{job.stage}: job {number}" + (f", after job {job.after}" if job.after else "") + f", log: {log}")
    return number


def record(stage: str, config: DictConfig, number: str, log: str, **more: str | None) -> None:
    """Append a job to the run's jobs.jsonl, unless it is listed already.

    cluster/job.py calls it too, for a job that sbatch was given by hand.
    """
    run_dir = Path(config.run_dir)
    if number in (job["job"] for job in read_jobs(run_dir)):
        return
    folder = stage_dir(stage, config) if stage in STAGES else run_dir
    line = {"job": number, "stage": stage, "folder": str(folder.relative_to(run_dir)), "log": log}
    line["submitted"] = datetime.now(UTC).isoformat(timespec="seconds")
    jobs_file(run_dir).parent.mkdir(parents=True, exist_ok=True)
    with jobs_file(run_dir).open("a") as file:
        file.write(json.dumps(line | more) + "\n")


def jobs_file(run_dir: Path) -> Path:
    return run_dir / "slurm" / "jobs.jsonl"


def read_jobs(run_dir: Path) -> list[dict]:
    """The jobs of a run in the order of submission; half-written lines do not count."""
    jobs = read_json_lines(jobs_file(run_dir))
    return [job for job in jobs if {"job", "stage", "folder", "log"} <= job.keys()]
