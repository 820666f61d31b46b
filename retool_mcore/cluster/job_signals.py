"""What Slurm says to a job by signals, and the end of Slurm's own process above it."""

import os
import signal
import threading
import time
from pathlib import Path

from retool_mcore.cluster import crash_marker
from retool_mcore.runner import processes
from retool_mcore.runner.launch import Stopped
from retool_mcore.state import stop

LAST_CALL_S = 90.0  # before the end of the job's time: a step that has not ended by then will not be waited for
PAUSABLE = ("sft", "rl")  # these look for STOP between two steps; the others are stopped, and go on by themselves


class Signals:
    """SIGUSR1: the time limit is near. SIGTERM: end. SIGHUP, from the kernel: the process that started us is gone, and
    with it Slurm's hold on this job."""

    def __init__(self, stage: str, folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.asked = self.running = False
        self.armed = True
        self.judges = False  # it was this process that said how the start ended, not the guard
        self.job_end = stop.job_end()
        signal.signal(signal.SIGUSR1, self._time_is_near)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._end)

    def watch_end(self) -> None:
        """Stop a step that the job's time is too short for in good order, before Slurm does. SIGUSR1 again says so."""
        if (left := self.job_end - time.time()) < threading.TIMEOUT_MAX:
            timer = threading.Timer(max(left - LAST_CALL_S, 0.0), os.kill, (os.getpid(), signal.SIGUSR1))
            timer.daemon = True
            timer.start()

    def watch_parent(self) -> None:
        """Have the kernel send SIGHUP when the parent process is gone."""
        processes.signal_at_parents_death(signal.SIGHUP)

    def ignore(self) -> None:
        """From here on the job is ending anyway."""
        self.armed = False

    def _end(self, signum: int, _) -> None:
        if self.armed:  # once: a second signal must not keep the cluster from being torn down
            self.armed = False
            self.judges = crash_marker.end(self.folder)  # at once: Slurm may kill us before all is torn down
            raise Stopped(signum)

    def _time_is_near(self, signum: int, _) -> None:
        last_call = time.time() >= self.job_end - LAST_CALL_S
        if (self.asked and not last_call) or not self.armed:
            return
        self.asked = True
        # Not print(): the signal may have come in the middle of one.
        os.write(1, f"{self.stage}: the time limit is near\n".encode())
        if self.running and self.stage in PAUSABLE and not last_call:
            stop.request(self.folder)
        else:
            self.armed = False
            raise Stopped(signum)
