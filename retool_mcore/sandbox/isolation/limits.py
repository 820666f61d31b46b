"""Resource limits, and what a run's processes use together."""

import math
import os
import resource

NICER = 10
PAGE = resource.getpagesize()


def set_fixed_limits(file_mb: int, max_files: int, max_processes: int) -> None:
    """Limits that are the same for all runs. The kernel holds `max_processes` against all tasks of the user id."""
    most = {"FSIZE": file_mb * 2**20, "NOFILE": max_files, "CORE": 0, "MEMLOCK": 0, "NICE": 0, "NPROC": max_processes}
    optional = {"MSGQUEUE": 0, "SIGPENDING": 1024}
    most |= {name: value for name, value in optional.items() if hasattr(resource, f"RLIMIT_{name}")}
    for name, value in most.items():
        _set(getattr(resource, f"RLIMIT_{name}"), value, value)


def set_memory_limit(memory_mb: int, mapped_bytes: int) -> None:
    """Address space on top of `mapped_bytes`, what the warm interpreter maps already. A little more stays free between
    the soft and the hard limit, so that a MemoryError can still be reported."""
    limit = mapped_bytes + memory_mb * 2**20
    _set(resource.RLIMIT_AS, limit, limit + 64 * 2**20)


def set_cpu_limit(cpu_s: int, last: bool) -> None:
    """Processor seconds from here on, for this process. last: no run follows in it, so that the hard limit closes a
    second later; that of a session's next run must stay higher."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + cpu_s
    _set(resource.RLIMIT_CPU, soft, soft + 1 if last else resource.RLIM_INFINITY)


def niceness(processes: int) -> int:
    """Return the niceness at which that many processes together weigh as much as one that is NICER than this process,
    up to 19.

    A step of nice is a weight 1.25 times as small (the kernel's sched_prio_to_weight). SCHED_IDLE would do more; on a
    busy machine its processes do not get even the time that ending takes.
    """
    return min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICER + math.ceil(math.log(max(1, processes), 1.25)))


def lower_priority(which: int, number: int, nice: int) -> None:
    """Lower the priority of a process or a process group (`os.PRIO_PROCESS`, `os.PRIO_PGRP`), and of the task group
    that the kernel makes of a session where autogrouping is on. It cannot be taken back."""
    try:
        os.setpriority(which, number, nice)
        with open(f"/proc/{number}/autogroup", "w") as file:
            file.write(str(nice))
    except OSError:
        return  # It has ended, or no such groups are made, or asked for again too soon.


def _set(kind: int, soft: int, hard: int) -> None:
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        hard = ceiling if hard == resource.RLIM_INFINITY else min(hard, ceiling)
        soft = min(soft, ceiling)
    resource.setrlimit(kind, (soft, hard))


def tasks() -> int:
    """Processes and threads of the whole machine, at least as many as any user has."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * PAGE


def descendants(pid: int) -> list[int]:
    """Process ids below `pid` at this moment, parents before children."""
    children = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in file.read().split():
                    children += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        pass  # It ended while we looked.
    return children


def private_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, 0 if it is gone; pages that a fork shares count for each."""
    return _sum_of(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, each shared page divided among those that share it. Slow: the kernel walks all
    pages. Where it does not let us look, the result is that of `private_bytes`."""
    try:
        return _sum_of(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))
    except PermissionError:
        return private_bytes(pid)


def _sum_of(path: str, names: tuple[bytes, ...]) -> int:
    """Bytes in the lines "NAME: N kB" of a process's file in /proc, 0 if the process is gone."""
    total = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(names):
                    total += int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total


def folder_use(folder: str, max_files: int) -> tuple[int, int]:
    """(bytes, entries) below `folder`; stops counting after `max_files` entries."""
    size, entries, waiting = 0, 0, [folder]
    while waiting and entries <= max_files:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entries += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if entries > max_files:
                        break
        except OSError:
            continue
    return size, entries
