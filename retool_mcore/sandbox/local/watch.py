"""Bounds that no limit of a single process sets: all processes of a run together, and the size of its folder."""

import os
import time

from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation import limits
from retool_mcore.sandbox.isolation.confine import FOLDER_FILES, FOLDER_MB, MAX_PROCESSES
from retool_mcore.sandbox.local.run import Run

WATCH_S = 0.1
# Runs younger than this are left alone: most end earlier, and looking costs more than they do.
GRACE_S = 0.2
# Whoever runs longer gives way to what is short and to the server, and whoever has made processes by then at once.
LONG_S, SOON_S = 0.03, 0.01


class Watch:
    """`zygote`: process id; what it has in memory is not counted for the forks that share it."""

    def __init__(self, zygote: int, has_namespaces: bool):
        self.zygote = zygote
        self.has_namespaces = has_namespaces
        self.shared_bytes = limits.private_bytes(zygote)

    def look(self, runs: list[Run]) -> list[Run]:
        """Return those of `runs` that are now stopped because they use too much."""
        now, grace_s = time.monotonic(), GRACE_S if self.has_namespaces else 0.0
        old = now - min(grace_s, LONG_S)
        grown = [run for run in runs if run.started < old and run.stopped is None and not run.is_over]
        of_zygote = [] if self.has_namespaces or not grown else limits.descendants(self.zygote)
        for run in grown:
            processes = run.place.processes(of_zygote)
            if now - run.started > grace_s:
                self._check(run, processes)
            if now - run.started > LONG_S and run.stopped is None:
                give_way(run, processes)
        return [run for run in grown if run.stopped is not None]

    def _check(self, run: Run, processes: list[int]) -> None:
        if len(processes) > MAX_PROCESSES:
            run.stop(Status.KILLED, f"the program started more than {MAX_PROCESSES} processes and was stopped")
            return
        limit = run.memory_mb * 2**20
        counted = sum(max(0, limits.private_bytes(pid) - self.shared_bytes) for pid in processes)
        # That counts pages which the program's own forks share once for each; the slow look says what is really used.
        if counted > limit and sum(limits.proportional_bytes(pid) for pid in processes) > limit:
            run.stop(Status.MEMORY, f"MemoryError: the program's processes needed more than {run.memory_mb} MB")
            return
        if not self.has_namespaces:
            size, entries = limits.folder_use(run.place.work_dir, FOLDER_FILES)
            if size > FOLDER_MB * 2**20 or entries > FOLDER_FILES:
                limit_text = f"{FOLDER_MB} MB or {FOLDER_FILES} files"
                run.stop(Status.KILLED, f"the program's folder grew beyond {limit_text} and was stopped")


def look_soon(run: Run) -> None:
    """Call SOON_S after its begin: a run that has made processes by then gives way."""
    if not run.is_over and len(processes := [run.place.program, *limits.descendants(run.place.program)]) > 1:
        give_way(run, processes)


def give_way(run: Run, processes: list[int]) -> None:
    """Lower the priority of a run's `processes`, the program's own first, so far that all do not weigh more than one.

    Each is lowered once. The program of a session is not, since no later run could raise it again.
    """
    nice = limits.niceness(len(processes))
    if nice > run.nice:
        run.nice, run.lowered = nice, set()
        if run.session is None:
            limits.lower_priority(os.PRIO_PGRP, run.place.program, nice)
    for pid in processes if run.session is None else processes[1:]:
        if pid not in run.lowered:
            limits.lower_priority(os.PRIO_PROCESS, pid, run.nice)
    run.lowered.update(processes)
