"""Puts a job whose own process was killed outright, or whose time is over, back into the queue: Slurm would only do so
for a lost node.

A step of its own on the job's first node, since Slurm ends what the batch script left at once, but a step only after
KillWait (30 s by default). While the job's process lives, a SIGTERM to the guard is the job's orderly end, or Slurm's
at the time limit: then the job's own process has too much to end before it may be killed.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from retool_mcore import temporary
from retool_mcore.cluster import crash_marker, slurm
from retool_mcore.cluster.node import node_mark
from retool_mcore.cluster.retry import TOO_SHORT, judge, recorded_bytes
from retool_mcore.runner import processes
from retool_mcore.state import chain

POLL_S = 0.3
KILLED = "the job's own process was killed, often for lack of memory"


@contextmanager
def guarded(
    srun: Callable[[Sequence[str], Sequence[str]], list[str]], *, pid: int, node: str, **given: object
) -> Iterator[None]:
    """Run the guard of process `pid` during the body. Without one (srun fails) the body runs all the same.

    given: what else `main` takes.
    """
    options = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"]
    given |= {"pid": pid, "node": node, "started": processes.read(pid).started}
    guard = subprocess.Popen(
        srun(options, [sys.executable, "-m", "retool_mcore.cluster.guard", json.dumps(given, default=str)]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        processes.end([guard], 10.0)


def watch(process: processes.Process, asked: threading.Event) -> bool:
    """Waits for the end of the process or for `asked`; whether the process was gone first."""
    while processes.read(process.pid) == process:
        if asked.is_set():
            return False
        time.sleep(POLL_S)
    return True


def main(given: str) -> int:
    """`given`: JSON of job (as Slurm's commands take it), node (its first), pid, started, stage, mark, folder (of the
    stage), recorded (recorded_bytes of the folder as the job began), max_attempts, log."""
    options = SimpleNamespace(**json.loads(given))
    options.folder = Path(options.folder)
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    if not watch(processes.Process(options.pid, options.started), asked):
        if slurm.timed_out(options.job):
            # The job's own process is ending its stage, and may be killed before it can judge.
            if judged := crash_marker.end(options.folder, options.mark):
                chain.end(options.folder, options.mark, chain.TIME_LIMIT)
            too_short = judged and recorded_bytes(options.folder) == options.recorded
            if not too_short or judge(options.folder, TOO_SHORT, options.max_attempts).requeue:
                slurm.requeue(options.job)
        return 0
    crash_marker.end(options.folder, options.mark)
    with suppress(slurm.NoAnswer):
        state = slurm.state(options.job)
        if state is not None and state.state == "PENDING":
            return 0  # Slurm ended it for a lost node, and has put it back itself
    for mark in (node_mark(options.mark, 0), options.mark):
        processes.stop(mark, grace_s=1.0)
    temporary.remove_job_folder()
    restart = int(options.mark.split("-")[1])
    if slurm.preempted(options.job, restart, [options.node]):
        chain.end(options.folder, options.mark, chain.PREEMPTION)
        slurm.requeue(options.job)
        return 0
    chain.end(options.folder, options.mark, chain.FAULT, KILLED)
    decision = judge(options.folder, KILLED, options.max_attempts)
    message = f"retool: {KILLED}\n{options.stage}: {decision.why.removesuffix('.')}"
    if decision.requeue:
        refusal = slurm.requeue(options.job)
        message += f"; job {options.job} is back in the queue" if refusal is None else f"; {refusal}"
    with suppress(OSError), open(options.log, "a") as log:
        log.write(f"{message}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
