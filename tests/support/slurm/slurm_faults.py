"""What can break under a running job, and how to see that the job noticed and went on. Used by tests and by
`benchmarks/cluster/faults.py`."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.runner import processes
from retool_mcore.state import heartbeat
from tests.support.slurm import slurm_here, slurm_jobs
from tests.support.slurm.slurm_cluster import NODES, Cluster
from tests.support.slurm.slurm_jobs import Job

SMALL_DISK_MB = 200
BALLAST = "ballast"
CAUSE = re.compile(
    r"^(retool: .*|rl: Ray's .*; the stage is ended.*|\S+: the time limit is near|\S+: stopped by .*"
    r"|\S+: Slurm's process above this job .*"
    r"|slurmstepd.*\*\*\* (?:JOB|STEP) .*)$"
)
RL_DELAY_S = 8.0  # two of its faults fit into 14 steps of 3 s
AHEAD_DELAY_S = 4.0  # a step of rollouts that run ahead takes a second
PORT = 21500  # given by hand, for the port that is taken
# Command lines by which a part is known.
PARTS = {
    "rank": re.compile(r"^\S*python\S* -u -m retool_mcore\.train\.sft "),
    "torchrun": re.compile(r"^\S*python\S* -m torch\.distributed\.run .*retool_mcore\.train\.sft "),
    "supervisor": re.compile(r"^\S*python\S* -m retool_mcore\.cluster\.node stage "),
    "job process": re.compile(r"-m retool_mcore\.cluster\.job "),
    "srun": re.compile(r"^srun .*retool_mcore\.cluster\.node stage "),
    "slurmstepd of the batch script": re.compile(r"^slurmstepd: \[\d+\.batch\]"),
    "slurmstepd": re.compile(r"^slurmstepd: \[\d+\.\d+\]"),
    "vLLM engine": re.compile(r"^VLLM::EngineCore"),
    "actor rank": re.compile(r"^ray::WorkerDict"),
    "Ray head (gcs_server)": re.compile(r"^\S*gcs_server "),
    "raylet": re.compile(r"^\S*raylet/raylet "),
    "sandbox server": re.compile(r"from retool_mcore\.sandbox\.local import server"),
    "transport": re.compile(r"^ray::CheckpointEngineWorker"),  # of an engine with devices of its own
    "agent-loop worker": re.compile(r"^ray::RolloutWorker"),
    "trainer": re.compile(r"^\S*python\S* -m retool_mcore\.train\.rl "),
    "template": re.compile(r"-m retool_mcore\.template "),
}


@dataclass(frozen=True)
class Fault:
    """`inject` breaks something and says what. `repair` undoes it once it was noticed; it may return another job."""

    name: str
    stage: str
    inject: Callable[[Job, random.Random], str]
    in_place: bool = False  # the same attempt goes on
    repair: Callable[[Job], Job | None] | None = None
    repair_after_s: float = 60.0  # when nobody noticed by then
    when: str = "steps"  # "start": before the first step of an attempt
    delay_s: float = 15.0  # a random part of it is waited for
    deadline_s: float = 900.0  # on a busy machine a start of RL takes minutes
    overrides: tuple[str, ...] = ()  # that the job is submitted with
    pipeline: str = "sync"  # of RL


@dataclass(frozen=True)
class Before:
    """A job at the moment of a fault."""

    steps: list[dict[int, dict]]
    files: int
    last: int
    output: int
    restarts: str
    job_id: str
    living: frozenset[processes.Process]

    @classmethod
    def of(cls, job: Job) -> "Before":
        steps = job.attempts()
        pids = [pid for node in NODES for pid in job.cluster.processes(node)]
        living = frozenset(filter(None, map(processes.read, pids)))
        last = max((max(attempt) for attempt in steps), default=0)
        return cls(steps, _files(job), last, len(job.output()), job.state()["Restarts"], job.id, living)

    def noticed(self, job: Job) -> bool:
        """The job's output names a cause, or Slurm ends or restarts it."""
        state = job.state()
        return bool(self.cause(job)) or state["JobState"] != "RUNNING" or state["Restarts"] != self.restarts

    def went_on(self, job: Job, in_place: bool = False) -> bool:
        """A step was done after the fault: in another attempt, or, `in_place`, in the same."""
        steps = job.attempts()
        if in_place and steps and max(steps[-1]) > self.last:
            return True
        return _files(job) > self.files and len(steps) > len(self.steps)

    def cause(self, job: Job) -> str:
        """The first line since then that names a cause; "" when there is none."""
        output = job.output()[self.output if job.id == self.job_id else 0 :]
        return first_cause(output)

    def survivors(self) -> list[processes.Process]:
        """What lived then and still does, Slurm's own daemons left out."""
        return [process for process in self.living if processes.read(process.pid) == process]


def first_cause(output: str) -> str:
    """The first line that names a cause; "" when there is none."""
    return next((line for line in output.splitlines() if CAUSE.match(line)), "")


def _files(job: Job) -> int:
    return len(list(job.folder.glob("metrics/attempt_*.jsonl")))


def left(cluster: Cluster, timeout_s: float = 20) -> dict[int, str]:
    """What still runs on the nodes after an ended job has had `timeout_s` to vanish."""
    deadline = time.monotonic() + timeout_s
    while (found := cluster.orphans()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def wait_for_attempt(job: Job, when: str, timeout_s: float = 1200) -> int:
    """Waits until the newest attempt of a running job has ended a step (`when` "steps") or has begun; its number."""
    deadline = time.monotonic() + timeout_s
    while True:
        files = sorted(job.folder.glob("metrics/attempt_*.jsonl"))
        state = job.state()
        running = state["JobState"] == "RUNNING" and len(files) > 0
        if running and (when == "start" or (files[-1].read_text().count("\n") > 0 and _fresh(files[-1]))):
            return len(files)
        assert state["JobState"] not in slurm_jobs.ENDS and time.monotonic() < deadline, job.output()[-3000:]
        time.sleep(0.1)


def _fresh(path: Path) -> bool:
    """Written to a moment ago: the attempt lives."""
    return time.time() - path.stat().st_mtime < 5


def find(cluster: Cluster, part: str, node: str) -> list[int]:
    """Process ids of a part on a node; without its forks, such as the one that writes a checkpoint."""
    found = {pid for pid, command in cluster.processes(node).items() if PARTS[part].search(command)}
    return sorted(pid for pid in found if _parent(pid) not in found)


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return None


def kill(part: str, *nodes: str, signum: int = signal.SIGKILL, phase: str = "") -> Callable[[Job, random.Random], str]:
    """kill -9 (or another signal) of one process of that part, on a random one of `nodes` (of those that have one); in
    the next `phase` of the trainer, where one is named."""

    def inject(job: Job, rng: random.Random | None = None) -> str:
        deadline = time.monotonic() + 60
        while True:
            candidates = [(node, pid) for node in nodes for pid in find(job.cluster, part, node)]
            if candidates:
                break
            assert time.monotonic() < deadline, f"no {part} on {nodes}: {job.cluster.orphans()}"
            time.sleep(0.1)
        # Of a step's processes the newest: those of the guard and of Ray's nodes are older.
        node, pid = (
            (rng or random).choice(candidates)
            if part != "slurmstepd"
            else (nodes[0], find(job.cluster, part, nodes[0])[-1])
        )
        moment = f" in the {phase}" if phase else ""
        while phase and heartbeat.phase_of(heartbeat.read(job.folder)) != phase:
            assert time.monotonic() < deadline, f"no {phase} began: {job.output()[-3000:]}"
            time.sleep(0.005)
        os.kill(pid, signum)
        what = "9" if signum == signal.SIGKILL else signal.Signals(signum).name[3:]
        return f"kill -{what} of the {part} on {node}{moment}"

    return inject


def usr1(job: Job, _: random.Random | None = None) -> str:
    job.cluster.run("scancel", "--signal=USR1", "--batch", job.id)  # as Slurm does for --signal=B:USR1@600
    return "USR1 to the batch script"


def scancel(job: Job, _: random.Random | None = None) -> str:
    job.cluster.run("scancel", job.id)
    return "scancel"


def submit_again(job: Job) -> Job:
    job.cluster.wait(job.id, *slurm_jobs.ENDS)
    return slurm_jobs.submit(job.cluster, job.stage, job.runs, *job.overrides)


def lose_node(node: str) -> Callable[[Job, random.Random], str]:
    def inject(job: Job, _: random.Random) -> str:
        job.cluster.lose(node)
        return f"the node {node} is gone"

    return inject


def bring_back(node: str) -> Callable[[Job], None]:
    return lambda job: slurm_here.start_node(job.cluster, node)


def rollout_node(job: Job) -> str:
    """The node whose engines generate ahead of the training."""
    (node,) = [node for node in NODES if find(job.cluster, "vLLM engine", node)]
    return node


def lose_rollout_node(job: Job, _: random.Random) -> str:
    node = rollout_node(job)
    job.cluster.lose(node)
    return f"the rollout node {node} is gone"


def bring_back_lost(job: Job) -> None:
    for node in NODES:
        if not os.path.exists(f"/proc/{job.cluster.inits[node]}/ns"):
            slurm_here.start_node(job.cluster, node)


def cut_rollout_node(job: Job, _: random.Random) -> str:
    node = rollout_node(job)
    job.cluster.link(node, up=False)
    return f"the network of the rollout node {node} is cut"


def join_again(job: Job) -> None:
    for node in NODES:
        job.cluster.link(node, up=True)


def kill_slurmd(job: Job, rng: random.Random) -> str:
    node = rng.choice(NODES)
    job.cluster.kill_slurmd(node)
    return f"kill -9 of slurmd on {node}"


def start_slurmds(job: Job) -> None:
    for node in NODES:
        if "slurmd" not in job.cluster.on(node, "ps", "-eo", "comm").split():
            job.cluster.start_slurmd(node)


def mount_small_disk(folder: Path) -> Path:
    """A file system of SMALL_DISK_MB for the checkpoints; nodes that are started afterwards see it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(folder):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(folder)], check=True)
    return folder


def put_on_small_disk(runs: Path, stage: str, small: Path) -> None:
    """Makes the checkpoints of the run `t` live on the small disk."""
    place = small / runs.name
    place.mkdir()
    (runs / "t" / stage).mkdir(parents=True, exist_ok=True)
    (runs / "t" / stage / "checkpoints").symlink_to(place)


def fill_disk(job: Job, _: random.Random) -> str:
    with (job.folder / "checkpoints" / BALLAST).open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 2**16)
    return "the disk of the checkpoints is full"


def empty_disk(job: Job) -> None:
    (job.folder / "checkpoints" / BALLAST).unlink()


@dataclass(frozen=True)
class Refusal:
    """A job that cannot begin: `make` spoils it and returns the overrides and environment of its submission, `mend`
    undoes that. `resubmit`: the job has ended by then; else it goes on by itself."""

    name: str
    stage: str
    make: Callable[[Cluster], tuple[str, tuple[str, ...], dict[str, str]]]
    mend: Callable[[Cluster], None]
    resubmit: bool
    pipeline: str = "sync"
    spare: bool = False  # a third node, on which the job goes on without the mending


_servers: list[subprocess.Popen] = []


def take_port(cluster: Cluster) -> tuple[str, tuple[str, ...], dict[str, str]]:
    program = f"import socket, time; s = socket.create_server(('', {PORT})); print('up', flush=True); time.sleep(600)"
    inside = ["nsenter", "--target", str(cluster.inits["n2"]), "--all", sys.executable, "-c", program]
    _servers.append(subprocess.Popen(inside, stdout=subprocess.PIPE, start_new_session=True))
    assert _servers[-1].stdout.readline() == b"up\n"
    return f"port {PORT} is in use on n2", (), {"RETOOL_RAY_PORT": str(PORT)}


def free_port(cluster: Cluster) -> None:
    for server in _servers:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
    _servers.clear()


def stop_slurmd(cluster: Cluster) -> tuple[str, tuple[str, ...], dict[str, str]]:
    cluster.kill_slurmd("n2")
    return "n2 does not come up", (), {}


def shrink_shm(cluster: Cluster) -> tuple[str, tuple[str, ...], dict[str, str]]:
    cluster.on("n2", "mount", "-o", "remount,size=64m", "/dev/shm")
    return "/dev/shm of n2 is too small", (), {}


WRONG_PATH = ("init_from=/no/such/model",)
REFUSALS = [
    Refusal("wrong path", "sft", lambda _: ("init_from=/no/such/model", WRONG_PATH, {}), lambda _: None, True),
    Refusal("node never up", "sft", stop_slurmd, lambda cluster: cluster.start_slurmd("n2"), False),
    Refusal("busy port", "rl", take_port, free_port, False),
    Refusal("bad node, a third is free", "sft", shrink_shm, lambda _: None, False, spare=True),
    Refusal("bad node, a third is free, async", "rl", shrink_shm, lambda _: None, False, "async", spare=True),
]
# Of runs whose rollouts, on a node of their own, go ahead of the training: what breaks, and what mends it.
AHEAD: dict[str, tuple[Callable[[Job, random.Random], str], Callable[[Job], None] | None]] = {
    "trainer rank": (kill("actor rank", *NODES), None),
    "rollout engine": (kill("vLLM engine", *NODES), None),
    "transport": (kill("transport", *NODES), None),
    "transport, in a push": (kill("transport", *NODES, phase=heartbeat.PUSH), None),
    "rollout node lost": (lose_rollout_node, bring_back_lost),
    "rollout node cut off": (cut_rollout_node, join_again),
    "raylet, rollout node": (lambda job, rng: kill("raylet", rollout_node(job))(job, rng), None),
    "agent-loop worker": (kill("agent-loop worker", *NODES), None),
    "trainer": (kill("trainer", *NODES), None),
    "job process": (kill("job process", "n1"), None),
    "USR1": (usr1, None),
}


def ahead(pipeline: str, *names: str) -> list[Fault]:
    return [
        Fault(
            f"{name}, {pipeline}",
            "rl",
            AHEAD[name][0],
            in_place=name == "agent-loop worker",  # its groups are asked for again
            repair=AHEAD[name][1],
            delay_s=AHEAD_DELAY_S,
            pipeline=pipeline,
        )
        for name in names
    ]


_FAULTS = [
    Fault("rank, head node", "sft", kill("rank", "n1")),
    Fault("rank, other node", "sft", kill("rank", "n2")),
    Fault("rank, at its start", "sft", kill("rank", *NODES), when="start", delay_s=8.0),
    Fault("rank, stopped", "sft", kill("rank", *NODES, signum=signal.SIGSTOP), overrides=("watchdog_minutes=2",)),
    Fault("torchrun", "sft", kill("torchrun", *NODES)),
    Fault("supervisor", "sft", kill("supervisor", *NODES)),
    Fault("srun", "sft", kill("srun", "n1")),
    Fault("job process", "sft", kill("job process", "n1")),
    Fault("slurmstepd, batch", "sft", kill("slurmstepd of the batch script", "n1")),
    Fault("slurmstepd, head node", "sft", kill("slurmstepd", "n1")),
    Fault("slurmstepd, other node", "sft", kill("slurmstepd", "n2")),
    Fault("USR1", "sft", usr1),
    Fault("scancel", "sft", scancel, repair=submit_again),
    Fault("slurmd", "sft", kill_slurmd, in_place=True, repair=start_slurmds, repair_after_s=2.0),
    Fault("disk full", "sft", fill_disk, repair=empty_disk),
    Fault("node lost, head", "sft", lose_node("n1"), repair=bring_back("n1")),
    Fault("node lost, other", "sft", lose_node("n2"), repair=bring_back("n2")),
    Fault("vLLM engine", "rl", kill("vLLM engine", *NODES), delay_s=RL_DELAY_S),
    Fault("actor rank", "rl", kill("actor rank", *NODES), delay_s=RL_DELAY_S),
    Fault("Ray head", "rl", kill("Ray head (gcs_server)", "n1"), delay_s=RL_DELAY_S),
    Fault("raylet, other node", "rl", kill("raylet", "n2"), delay_s=RL_DELAY_S),
    Fault("sandbox server", "rl", kill("sandbox server", *NODES), in_place=True, delay_s=RL_DELAY_S),
    Fault("agent-loop worker", "rl", kill("agent-loop worker", *NODES), in_place=True, delay_s=RL_DELAY_S),
    *ahead("one_step_off", "trainer rank", "rollout engine", "rollout node lost", "transport, in a push"),
    *ahead("async", *AHEAD),
]
FAULTS = {fault.name: fault for fault in _FAULTS}
