"""Queries to Slurm: jobs (squeue for those it still holds, sacct for ended ones where accounting is on), and Slurm
itself.

A controller that restarts or is busy gives no answer for a while. That is not a "no": a caller that decides on the
answer asks again (`timed_out`, `requeue`).
"""

import functools
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from retool_mcore.errors import UserError
from retool_mcore.state import stop

TIMEOUT_S = 10
PAUSE_S = 5.0  # between two questions to a controller that does not answer
ANSWER_S = 25.0  # how long a job that is being ended asks: Slurm kills it KillWait (30 s by default) after SIGTERM
REQUEUE_S = 300.0  # a controller's restart with its state files takes a minute or two on a large cluster
LIMIT_MARGIN_S = 30.0  # Slurm looks at time limits twice a minute
# What the commands print when the controller cannot be reached, whatever the job (slurm_strerror, slurm_errno.c).
NO_CONTROLLER = re.compile(
    "contact slurm controller|unexpected message|timed out|zero bytes|connection (refused|reset|failure)|standby|"
    "transport endpoint|message length|authentication|credential|resource temporarily unavailable",
    re.IGNORECASE,
)
# What `scontrol requeue` prints when asking again cannot help.
REFUSED = re.compile("disabled|denied|permission|not permitted|invalid (job|user)|no such", re.IGNORECASE)
AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED")  # with nodes
ACTIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STOPPED")


@dataclass(frozen=True)
class JobState:
    state: str  # Slurm's word: PENDING, RUNNING, COMPLETED, TIMEOUT, ...
    reason: str = ""  # why it waits, in Slurm's word: Resources, Dependency, BeginTime, ...

    @property
    def active(self) -> bool:
        """Queued or running: it may still do something."""
        return self.state in ACTIVE


class NoAnswer(Exception):
    """The controller did not answer, which says nothing about the job."""


def own_id(env: Mapping[str, str] = os.environ) -> str:
    """This job as Slurm's commands take it: TASK of an array as ARRAY_TASK, since ARRAY alone means all of its tasks.

    SLURM_JOB_ID is no such name: one task of every array has the array's own number there.
    """
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else env["SLURM_JOB_ID"]


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
    """The states of jobs by id (N, or ARRAY_TASK); those that Slurm no longer knows are left out, and all where there
    is no Slurm."""
    if not jobs:
        return {}
    by_job: dict[str, JobState] = {}
    for line in _lines(["sacct", "-n", "-P", "-X", f"--jobs={','.join(jobs)}", "--format=JobID,State"]):
        number, _, state = line.partition("|")
        if number in jobs and state:
            by_job[number] = JobState(state.split()[0])  # "CANCELLED by 1000"
    return by_job | _queued(jobs, _lines(_squeue(jobs)))


def _squeue(jobs: Sequence[str]) -> list[str]:
    return ["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--states=all", "--format=%i|%T|%r"]


def _queued(jobs: Sequence[str], lines: Sequence[str]) -> dict[str, JobState]:
    by_job = {}
    for line in lines:
        number, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if number in jobs and state:
            by_job[number] = JobState(state, "" if reason == "None" else reason)
    return by_job


def state(job: str, patience_s: float = ANSWER_S) -> JobState | None:
    """The state of a job that is at work; None when Slurm does not know it.

    Raises:
        NoAnswer: the controller did not answer for `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    while (lines := _answer(_squeue([job]))) is None:
        if time.monotonic() + PAUSE_S > deadline:
            raise NoAnswer(f"squeue did not answer for {patience_s:.0f} s")
        time.sleep(PAUSE_S)
    return _queued([job], lines).get(job)


def at_work(job: str, patience_s: float = REQUEUE_S) -> bool:
    """Whether Slurm has given nodes to the job; True as well where the controller does not answer for `patience_s`."""
    try:
        job_state = state(job, patience_s)
    except NoAnswer:
        return True
    return job_state is not None and job_state.state in AT_WORK


def end_time(job: str) -> float | None:
    """When the job's time limit is reached, in seconds since the epoch; None where Slurm does not say."""
    for line in _lines(["squeue", "--noheader", f"--jobs={job}", "--format=%e"], SLURM_TIME_FORMAT="standard"):
        try:
            return datetime.fromisoformat(line.strip()).timestamp()
        except ValueError:  # N/A
            continue
    end = os.environ.get("SLURM_JOB_END_TIME", "")  # set by newer versions
    return float(end) if end.isdecimal() else None


def timed_out(job: str, patience_s: float = ANSWER_S) -> bool:
    """Whether Slurm ends the job at its time limit, or has put it back into the queue since. scancel's SIGTERM is the
    same signal, but leaves no reason. Without an answer the clock decides."""
    try:
        job_state = state(job, patience_s)
    except NoAnswer:
        return time.time() >= stop.job_end() - LIMIT_MARGIN_S
    return job_state is not None and (job_state.reason == "TimeLimit" or job_state.state == "PENDING")


def preempted(job: str, restart: int, nodes: Sequence[str]) -> bool:
    """Whether start `restart` (from 0) of a job, on `nodes`, is ended for another job's sake, or by `scontrol requeue`.

    Within the partition's GraceTime Slurm names the time of the preemption, and has sent SIGTERM to the job's steps
    alone. Then it puts the job back itself and forgets that time. A lost node has it put back, too, and is a fault.
    """
    facts = _facts(job)
    times = [facts.get(name, "") for name in ("PreemptTime", "StartTime")]
    if all("T" in word for word in times) and times[0] >= times[1]:  # ISO 8601; None where it never was
        return True
    return _restarts(facts) > restart and not _any_down(nodes)


def sent_back(job: str, restart: int) -> bool:
    """Whether Slurm or the guard has put a job back into the queue while its start `restart` (from 0) still ends."""
    return _restarts(_facts(job)) > restart


def _restarts(facts: Mapping[str, str]) -> int:
    return int(facts["Restarts"]) if facts.get("Restarts", "").isdecimal() else 0


def _any_down(nodes: Sequence[str]) -> bool:
    asked = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%T"]
    return any(line.startswith("down") for line in _lines(asked))


def requeue(job: str, patience_s: float = REQUEUE_S) -> str | None:
    """Puts a running job back into the queue, and asks again where the controller does not answer.

    Returns:
        None when the job is there, else why Slurm refuses.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            asked = [program("scontrol"), "requeue", job]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT_S)
            # "Job is pending": Slurm has put it there itself, for a node that it holds for lost.
            refusal = None if done.returncode == 0 or "pending" in done.stderr else done.stderr.strip()
        except subprocess.TimeoutExpired:
            refusal = f"scontrol did not answer within {TIMEOUT_S} s"
        if refusal is None or REFUSED.search(refusal) or time.monotonic() + PAUSE_S > deadline:
            return refusal
        time.sleep(PAUSE_S)


def avoid(job: str, nodes: Sequence[str], needed: int) -> bool:
    """Has a job of `needed` nodes that waits in the queue start on others than `nodes`. False, and nothing is changed,
    where too few others of its partition are up, the job was sent to nodes by name, or Slurm refuses."""
    facts = _facts(job)
    before = facts.get("ExcNodeList", "(null)")
    avoided = [*nodes, *(hostnames(before) if before != "(null)" else ())]
    up = ["sinfo", "--noheader", "--Node", "--responding", f"--partition={facts.get('Partition')}", "--format=%N"]
    others = {name.strip() for name in _lines([*up, "--states=idle,allocated,mixed,completing"])} - {*avoided}
    if len(others) < needed or facts.get("ReqNodeList", "(null)") != "(null)":
        return False
    change = [program("scontrol"), "update", f"JobId={job}", f"ExcNodeList={','.join(avoided)}"]
    return subprocess.run(change, capture_output=True).returncode == 0


def start_after(job: str, other: str) -> bool:
    """Has a job that waits in the queue start once `other` has ended, however it ends; whether Slurm agrees."""
    change = [program("scontrol"), "update", f"JobId={job}", f"Dependency=afterany:{other}"]
    return subprocess.run(change, capture_output=True).returncode == 0


def partitions(names: str | None) -> list[dict[str, str]]:
    """Return `scontrol show partition` for each of `names` (comma-separated; None: the default one), as name -> value;
    [] where there is no Slurm."""
    lines = _lines(["scontrol", "--oneliner", "show", "partition"])
    listed = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    if names is None:
        return [facts for facts in listed if facts.get("Default") == "YES"]
    return [facts for facts in listed if facts.get("PartitionName") in names.split(",")]


@functools.cache
def binds_cpus() -> bool:
    """Whether this Slurm binds a step's tasks to cores: one that cannot complains of every --cpu-bind."""
    plugins = next((line for line in _lines(["scontrol", "show", "config"]) if line.startswith("TaskPlugin ")), "")
    return "affinity" in plugins or "cgroup" in plugins


def _facts(job: str) -> dict[str, str]:
    """Return `scontrol show job` as name -> value."""
    lines = _lines(["scontrol", "show", "job", job])
    return dict(word.partition("=")[::2] for line in lines for word in line.split())


def _lines(command: list[str], **env: str) -> list[str]:
    return _answer(command, **env) or []


def _answer(command: list[str], **env: str) -> list[str] | None:
    """The lines that a command of Slurm prints, none where it fails or is not installed; None without an answer."""
    command = [program(command[0]), *command[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | env)
    except OSError:
        return []
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return done.stdout.splitlines()
    return None if NO_CONTROLLER.search(done.stderr) else []
