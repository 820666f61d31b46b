"""A forecast of a job before it is queued: its time limit, how many jobs the stage takes, disk and memory."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from retool_mcore.cluster import slurm
from retool_mcore.cluster.site import Site
from retool_mcore.errors import UserError
from retool_mcore.planner import run, verdict
from retool_mcore.planner.shape import Shape
from retool_mcore.preflight import data, disk
from retool_mcore.state.schedule import END_S, SAVE_MARGIN, STEP_MARGIN

DAY_S = 24 * 3600.0
START_S = 600.0  # checks of the nodes, Ray, 65 GB of weights into trainer and engines, before the first step begins
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
UNLIMITED = ("UNLIMITED", "INFINITE")


@dataclass(frozen=True)
class Limit:
    """A job's time limit.

    seconds: None where nobody here knows it, infinity where there is none; asked: by the site or the environment.
    """

    seconds: float | None
    words: str
    asked: bool = False


def seconds(text: str) -> float | None:
    """Seconds of a time in Slurm's notation (man sbatch, --time); None for what is none, as "NONE"."""
    if text.upper() in UNLIMITED:
        return math.inf
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:  # DAYS-HOURS[:MINUTES[:SECONDS]]
        hours, minutes, rest = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, rest = parts
    else:  # MINUTES[:SECONDS]
        hours, (minutes, rest) = 0, [*parts, 0][:2]
    return ((24 * int(match["days"] or 0) + hours) * 60 + minutes) * 60.0 + rest


def limit(site: Site, env: Mapping[str, str] = os.environ) -> Limit:
    """The limit that a job of `retool submit` will have: the site's, else what sbatch takes where none is asked for."""
    asked = site.time or _flag(site, "time", "t")
    where = f"time in the site {site.name}" if asked else "SBATCH_TIMELIMIT"
    if asked := asked or env.get("SBATCH_TIMELIMIT"):
        return Limit(seconds(asked), f"{asked} ({where})", asked=True)
    partition = site.partition or _flag(site, "partition", "p") or env.get("SBATCH_PARTITION")
    for facts in slurm.partitions(partition):
        for name in ("DefaultTime", "MaxTime"):
            if (known := seconds(facts.get(name, "NONE"))) is not None:
                return Limit(known, f"{facts[name]} ({name} of the partition {facts.get('PartitionName')})")
    return Limit(None, "the DefaultTime of the partition (`scontrol show partition`)")


def _flag(site: Site, name: str, short: str) -> str | None:
    words = [flag.partition("=") for flag in site.flags]
    return next((value for flag, _, value in reversed(words) if flag in (f"--{name}", f"-{short}")), None)


def course(config: DictConfig) -> tuple[run.Course, int | None] | None:
    """(the stage's steps and saves before the planner, how many steps it has where that is known).

    None for a stage without a trainer and for what the planner does not know.
    """
    if "train" not in config or config.parallel.device != "cuda" or (shape := shape_of(config)) is None:
        return None
    try:
        steps = config.train.steps or _steps_of_epochs(config)
        config = OmegaConf.merge(config, {"train": {"steps": steps}})
        problem = run.read(config, shape, run.machine_of(config))
        return run.course(config, problem, run.present(config, problem)), steps
    except UserError:  # a layout that is refused elsewhere
        return None


def shape_of(config: DictConfig) -> Shape | None:
    """The policy's shape; None where the planner does not know the model."""
    try:
        return run.shape_of(config)
    except UserError:
        return None


def _steps_of_epochs(config: DictConfig) -> int | None:
    files = data.listed(config.data.sft_train_files)
    if not all(file.is_file() for file in files):
        return None
    return config.train.epochs * (data.count_rows(files) // config.train.batch)


def jobs(found: run.Course, steps: int, limit_s: float) -> int:
    """How many jobs of `limit_s` seconds the stage takes, requeues included; 0 where none of them ends a step."""
    each = (found.hours or 0.0) * 3600 / steps
    reserve = START_S + END_S + (STEP_MARGIN - 1) * found.step + SAVE_MARGIN * found.save
    if math.isinf(limit_s):
        return 1
    fits = int((limit_s - reserve) // each)
    return math.ceil(steps / fits) if fits >= 1 else 0


def lines(stage: str, config: DictConfig, limit: Limit) -> Iterator[str]:
    """Yield a dry run's lines about a stage: how long it takes in how many jobs, disk, memory of a node."""
    if (known := course(config)) is not None:
        prediction, steps = known
        took = f"{prediction.step:,.0f} s a step"
        if prediction.hours is not None and steps:
            took = f"{verdict.length(prediction.hours)} in all, {took}"
            took += counted(prediction, steps, limit)
        yield f"takes: {took} (predicted; lengths: a third of the limit)"
    yield from (f"{name}: {text}" for name, text in disk.room(stage, config))


def counted(found: run.Course, steps: int, limit: Limit) -> str:
    """The number of jobs in words, as ": 9 jobs with this limit"; of a day each where the limit is not known."""
    count = jobs(found, steps, DAY_S if limit.seconds is None else limit.seconds)
    if not count:
        return ""  # `warning` says it
    each = "of a day each" if limit.seconds is None else "with this limit"
    return f": {count} job{'s' if count > 1 else ''} {each}, requeues included"


def warning(stage: str, config: DictConfig, site: Site, limit: Limit) -> str:
    """Return what is wrong with the time limit of a stage's job; "" where nothing is known to be wrong."""
    where = f"set time in configs/site/{site.name}.yaml, as in 1-00:00:00"
    known = course(config)
    if known is not None and limit.seconds is not None:
        prediction = known[0]
        least = START_S + prediction.step + prediction.save + END_S
        if limit.seconds < least:
            parts = f"a start ({START_S / 60:.0f} minutes), a step ({prediction.step / 60:.0f}) and a save"
            return (
                f"{stage}: the time limit is {limit.words}, and {parts} ({prediction.save / 60:.0f}) take "
                f"{least / 60:.0f} minutes: {where}."
            )
    if not limit.asked and limit.seconds != math.inf:
        return f"{stage}: time is null, so the limit is {limit.words}: {where}, where that is short."
    return ""
