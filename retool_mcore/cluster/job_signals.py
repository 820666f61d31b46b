"""Slurm's signals to a job, and the end of Slurm's own process above it."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from retool_mcore.cluster import crash_marker, slurm
from retool_mcore.runner import processes
from retool_mcore.runner.launch import Stopped
from retool_mcore.state import stop

LAST_CALL_S = 90.0  # before the end of the job's time: a step that has not ended by then will not be waited for
ASK_S = 120.0  # between two looks at the job's end: a limit can be extended, or shortened before a maintenance
PAUSABLE = ("sft", "rl")  # these look for STOP between two steps; the others are stopped, and resume on their own


class Signals:
    """SIGUSR1: the time limit is near. SIGTERM: end. SIGHUP, from the kernel: the process that started us is gone, and
    with it Slurm's hold on this job.

    mark: of this start (crash_marker.py).
    late_term: a SIGTERM came after the stage had begun to end for another reason, as of scancel.
    """

    def __init__(self, stage: str, folder: Path, mark: str = "") -> None:
        self.stage, self.folder, self.mark = stage, folder, mark
        self.asked = self.running = self.late_term = False
        self.armed = True
        self.judges = False  # this process, not the guard, reported how the start ended
        signal.signal(signal.SIGUSR1, self._time_is_near)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._end)

    def watch_end(self, job: str, path: Path) -> None:
        """Keep the end of the job's time in `path`, which the trainer reads (stop.job_end), as long as Slurm names one;
        and stop a step that the time is too short for in good order, before Slurm does. SIGUSR1 again says so."""
        if (end := slurm.end_time(job)) is None:
            os.environ.pop(stop.JOB_END, None)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        stop.write_job_end(path, end)
        os.environ[stop.JOB_END] = str(path)
        threading.Thread(target=self._follow_end, args=(job, path, end), daemon=True).start()

    def _follow_end(self, job: str, path: Path, end: float) -> None:
        while self.armed and (left := end - LAST_CALL_S - time.time()) > 0:
            time.sleep(min(left, ASK_S))
            if not self.armed or (now := slurm.end_time(job)) is None or now == end:  # None: also without an answer
                continue
            with suppress(OSError):
                stop.write_job_end(path, now)
            _write(f"{self.stage}: the job's time now ends {(now - end) / 60:+.0f} minutes from where it did")
            if now > end and self.asked:  # Slurm warns again before the new end
                self.asked = False
                stop.withdraw(self.folder)
            end = now
        if self.armed:
            os.kill(os.getpid(), signal.SIGUSR1)

    def watch_parent(self) -> None:
        """Have the kernel send SIGHUP when the parent process is gone."""
        processes.signal_at_parents_death(signal.SIGHUP)

    def ignore(self) -> None:
        """Ignore signals from here on: the job is ending anyway."""
        self.armed = False

    def cancelled(self, job: str, restart: int) -> bool:
        """Whether the user, or an admin, ended the job while its start `restart` was ending already: it must not go on
        then."""
        return self.late_term and not slurm.timed_out(job) and not slurm.preempted(job, restart, ())

    def _end(self, signum: int, _) -> None:
        if self.armed:  # once: a second signal must not keep the cluster from being torn down
            self.armed = False
            self.judges = crash_marker.end(self.folder, self.mark)  # at once: Slurm may kill us before all is torn down
            raise Stopped(signum)
        self.late_term |= signum == signal.SIGTERM

    def _time_is_near(self, signum: int, _) -> None:
        last_call = time.time() >= stop.job_end() - LAST_CALL_S
        if (self.asked and not last_call) or not self.armed:
            return
        self.asked = True
        _write(f"{self.stage}: the time limit is near")
        if self.running and self.stage in PAUSABLE and not last_call:
            stop.request(self.folder)
        else:
            self.armed = False
            raise Stopped(signum)


def _write(line: str) -> None:
    """A line on our output. Not print(): the signal may have come in the middle of one."""
    os.write(1, f"{line}\n".encode())
