"""Submits jobs of light_job.py to the two-node Slurm, and follows them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.slurm.slurm_cluster import Cluster
from tests.support.slurm.slurm_jobs import Job

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """\
#!/bin/bash
trap '' USR1 # as slurm/site.sh
export PYTHONPATH={repository} LIGHT={light}
name=${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}
exec {python} {program} {stage} "name=t$name" runs_dir={runs} "$@"
"""
# As slurm/*.sbatch ask.
FIXED = ("--parsable", "--ntasks-per-node=1", "--signal=B:USR1@600", "--requeue", "--open-mode=append")
PATIENCE_S = 300.0  # on a busy machine a job takes a minute to start
LAYOUTS = {1: "cpu-1", 2: "cpu-2nodes"}


def tell(runs: Path, **settings) -> None:
    """Write what light_job.py and light_trainer.py do from now on."""
    runs.mkdir(parents=True, exist_ok=True)
    part = runs / "light.part"
    part.write_text(json.dumps(settings))
    part.replace(runs / "light.json")


def submit(cluster: Cluster, runs: Path, *options: str, stage: str = "sft", nodes: int = 1, layout: str = "") -> Job:
    """Submits the stage of the run `t` in `runs` (of a task of an array: `t-TASK`); `options` are sbatch's."""
    if not (runs / "light.json").exists():
        tell(runs)
    script = runs / "light.sh"
    facts = {"repository": REPOSITORY, "light": runs / "light.json", "python": sys.executable}
    facts |= {"program": Path(__file__).with_name("light_job.py"), "stage": stage, "runs": runs}
    script.write_text(SCRIPT.format(**facts))
    (runs / "t" / "slurm").mkdir(parents=True, exist_ok=True)  # slurmd drops the output when the folder is missing
    output = f"--output={runs}/t/slurm/%A{'_%a' * any('--array' in option for option in options)}-{stage}.out"
    words = [f"parallel={layout or LAYOUTS[nodes]}"]
    number = cluster.run("sbatch", *FIXED, f"--nodes={nodes}", output, *options, str(script), *words).strip()
    return Job(cluster, number, stage, runs)


def wait_for(condition: Callable, job: Job, timeout_s: float = PATIENCE_S):
    """What `condition` gives once it is true. The job's output is in the error where that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{job.state()}\n{job.output()}"
        time.sleep(0.2)
    return found


def step_of(job: Job) -> int:
    """The last step of the job's newest attempt that has one; 0 for none."""
    return max((max(steps) for steps in job.attempts()), default=0)


def wait_for_steps(job: Job, more: int = 2, timeout_s: float = PATIENCE_S) -> int:
    """Waits until the stage has ended so many steps more than it has now; the last one."""
    before = step_of(job), len(job.attempts())

    def went_on() -> bool:
        return len(job.attempts()) > before[1] or step_of(job) >= before[0] + more

    wait_for(went_on, job, timeout_s)
    return step_of(job)
