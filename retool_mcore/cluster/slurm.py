"""What Slurm says: of jobs, squeue for those it still holds, sacct for ended ones where accounting is on; of itself."""

import functools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from retool_mcore.errors import UserError

TIMEOUT_S = 10
ACTIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STOPPED")


@dataclass(frozen=True)
class JobState:
    state: str  # Slurm's word: PENDING, RUNNING, COMPLETED, TIMEOUT, ...
    reason: str = ""  # why it waits, in Slurm's word: Resources, Dependency, BeginTime, ...

    @property
    def active(self) -> bool:
        """Queued or running: it may still do something."""
        return self.state in ACTIVE


def program(name: str) -> str:
    """A command of Slurm: in a container the stand-in for the host's (slurm/host_slurm.py)."""
    return os.path.join(os.environ.get("RETOOL_HOST_SLURM", ""), name)


def hostnames(nodelist: str) -> list[str]:
    """The nodes of a list in Slurm's notation, n[1-3]. Raises UserError where scontrol does not tell."""
    asked = [program("scontrol"), "show", "hostnames", nodelist]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.split():
        raise UserError(f"scontrol does not tell the nodes of this job: {done.stderr.strip() or 'no answer'}.")
    return done.stdout.split()


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs by number; those that Slurm no longer knows are left out, and all where there is no Slurm."""
    if not jobs:
        return {}
    found: dict[str, JobState] = {}
    for line in _lines(["sacct", "-n", "-P", "-X", f"--jobs={','.join(jobs)}", "--format=JobIDRaw,State"]):
        number, _, state = line.partition("|")
        if number in jobs and state:
            found[number] = JobState(state.split()[0])  # "CANCELLED by 1000"
    wanted = f"--jobs={','.join(jobs)}"
    for line in _lines(["squeue", "--noheader", wanted, "--states=all", "--format=%i|%T|%r"]):
        number, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if number in jobs and state:
            found[number] = JobState(state, "" if reason == "None" else reason)
    return found


def end_time(job: int) -> float | None:
    """When the job's time limit is reached, in seconds since the epoch; None where Slurm does not say."""
    for line in _lines(["squeue", "--noheader", f"--jobs={job}", "--format=%e"], SLURM_TIME_FORMAT="standard"):
        try:
            return datetime.fromisoformat(line.strip()).timestamp()
        except ValueError:  # N/A
            continue
    told = os.environ.get("SLURM_JOB_END_TIME", "")  # by newer ones
    return float(told) if told.isdecimal() else None


def timed_out(job: int) -> bool:
    """Whether Slurm ends the job at its time limit, or has put it back into the queue since. scancel's SIGTERM is the
    same signal, but leaves no reason."""
    found = states([str(job)]).get(str(job))
    return found is not None and (found.reason == "TimeLimit" or found.state == "PENDING")


def requeue(job: int) -> str | None:
    """Puts a running job back into the queue. None when it is there, else why Slurm refuses."""
    done = subprocess.run([program("scontrol"), "requeue", str(job)], capture_output=True, text=True)
    # "Job is pending": Slurm has put it there itself, for a node that it holds for lost.
    return None if done.returncode == 0 or "pending" in done.stderr else done.stderr.strip()


def avoid(job: int, nodes: Sequence[str], needed: int) -> bool:
    """Has a job of `needed` nodes that waits in the queue start on others than `nodes`. False, and nothing is changed,
    where too few others of its partition are up, the job was sent to nodes by name, or Slurm refuses."""
    said = _lines(["scontrol", "show", "job", str(job)])
    told = dict(word.partition("=")[::2] for line in said for word in line.split())
    before = told.get("ExcNodeList", "(null)")
    avoided = [*nodes, *(hostnames(before) if before != "(null)" else ())]
    up = ["sinfo", "--noheader", "--Node", "--responding", f"--partition={told.get('Partition')}", "--format=%N"]
    others = {name.strip() for name in _lines([*up, "--states=idle,allocated,mixed,completing"])} - {*avoided}
    if len(others) < needed or told.get("ReqNodeList", "(null)") != "(null)":
        return False
    change = [program("scontrol"), "update", f"JobId={job}", f"ExcNodeList={','.join(avoided)}"]
    return subprocess.run(change, capture_output=True).returncode == 0


@functools.cache
def binds_cpus() -> bool:
    """Whether this Slurm binds a step's tasks to cores: one that cannot complains of every --cpu-bind."""
    plugins = next((line for line in _lines(["scontrol", "show", "config"]) if line.startswith("TaskPlugin ")), "")
    return "affinity" in plugins or "cgroup" in plugins


def _lines(command: list[str], **env: str) -> list[str]:
    command = [program(command[0]), *command[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | env)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
