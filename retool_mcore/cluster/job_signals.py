"""What Slurm says to a job by signals, and the end of Slurm's own process above it."""

import os
import signal
from pathlib import Path

from retool_mcore import processes, stop
from retool_mcore.cluster import last_start
from retool_mcore.launch import Stopped

PAUSABLE = ("sft", "rl")  # these look for STOP between two steps; the others are stopped, and go on by themselves


class Signals:
    """SIGUSR1: the time limit is near. SIGTERM: end. SIGHUP, from the kernel: the process that started us is gone, and
    with it Slurm's hold on this job."""

    def __init__(self, stage: str, folder: Path) -> None:
        self.stage, self.folder = stage, folder
        self.asked = self.running = False
        self.armed = True
        signal.signal(signal.SIGUSR1, self._time_is_near)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._end)

    def watch_parent(self) -> None:
        """Have the kernel send SIGHUP when the parent process is gone."""
        processes.signal_at_parents_death(signal.SIGHUP)

    def ignore(self) -> None:
        """From here on the job is ending anyway."""
        self.armed = False

    def _end(self, signum: int, _) -> None:
        if self.armed:  # once: a second signal must not keep the cluster from being torn down
            self.armed = False
            last_start.end(self.folder)  # at once: Slurm may kill us before all is torn down
            raise Stopped(signum)

    def _time_is_near(self, signum: int, _) -> None:
        if self.asked or not self.armed:
            return
        self.asked = True
        # Not print(): the signal may have come in the middle of one.
        os.write(1, f"{self.stage}: the time limit is near\n".encode())
        if self.running and self.stage in PAUSABLE:
            stop.request(self.folder)
        else:
            self.armed = False
            raise Stopped(signum)
