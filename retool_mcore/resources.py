"""Memory and processors that this process may use: the machine's, or less where a control group limits them.

A job of Slurm, a container and `systemd-run` have limits that the machine's totals do not show. Every group from the
process's own up to the root counts, in both versions of the kernel's interface (Documentation/admin-guide/cgroup-v1 and
cgroup-v2.rst); on a hybrid system some controllers are in one and some in the other.
"""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GIB = 2**30
_UNLIMITED = 2**60  # version 1 writes the largest multiple of a page for "no limit"
# Pages that the kernel takes back when memory runs short, by version; of version 1 with all groups below.
_RECLAIMABLE = {
    1: ("total_active_file", "total_inactive_file"),
    2: ("active_file", "inactive_file", "slab_reclaimable"),
}


class Limit(NamedTuple):
    """A group's limit in bytes, how much of it can still be had, and the file that holds it."""

    limit: int
    available: int
    file: Path


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Free memory plus what the kernel can take back from its caches, within every limit of this process's groups.

    `root` is the folder of /proc and the groups' file systems.
    """
    return min([_machine_available(), *(limit.available for limit in memory_limits(root))])


def tightest(root: Path = Path("/")) -> Limit | None:
    """The limit that leaves the least memory, where it leaves less than the machine has; None: there is none."""
    limits = memory_limits(root)
    least = min(limits, key=lambda limit: limit.available, default=None)
    return least if least and least.available < _machine_available() else None


def _machine_available() -> int:
    import psutil  # a sandbox's own processes ask for processors alone

    return psutil.virtual_memory().available


def memory_limits(root: Path = Path("/")) -> list[Limit]:
    """The memory limits of all groups that this process is in."""
    result = []
    for version, folder in _groups("memory", root):
        names = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}[version]
        used = _number(folder / {1: "memory.usage_in_bytes", 2: "memory.current"}[version]) or 0
        stat = _table(folder / "memory.stat")
        used -= sum(stat.get(name, 0) for name in _RECLAIMABLE[version])
        limits = {name: _number(folder / name) for name in names}
        if version == 1:  # that of the groups above counts, too, which a container does not show
            limits["memory.stat"] = stat.get("hierarchical_memory_limit")
        for name, limit in limits.items():
            if limit is not None and limit < _UNLIMITED:
                result.append(Limit(limit, max(0, limit - max(0, used)), folder / name))
    return result


def processors(root: Path = Path("/")) -> int:
    """Processors that this process may use, at least 1: those that it may run on, or fewer by a quota of time."""
    counts: list[float] = [len(os.sched_getaffinity(0))]
    for version, folder in _groups("cpu", root):
        if version == 1:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        else:
            words = _text(folder / "cpu.max").split()
            quota, period = (int(word) if word.isdigit() else None for word in (*words, "", "")[:2])
            period = period or 100_000  # the kernel's own
        if quota is not None and quota > 0 and period:
            counts.append(quota / period)
    for version, folder in _groups("cpuset", root):
        for name in {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective",)}[version]:
            if counted := _count(_text(folder / name)):
                counts.append(counted)
                break
    return max(1, math.ceil(min(counts)))


def _groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's group and of each above it, as far as they can be seen."""
    mounts = list(_mounts(root))
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for kind, options, start, place in mounts:
            if kind != version or (version == 1 and controller not in options):
                continue
            # A container's file system begins at `start`; a group outside it is shown as /../ and cannot be read.
            below = own.removeprefix(start) if start != "/" and f"{own}/".startswith(f"{start}/") else own
            below = "" if (start != "/" and below == own) or "/.." in below else below
            folder = root / place.lstrip("/") / below.strip("/")
            top = root / place.lstrip("/")
            yield from ((version, path) for path in (folder, *folder.parents) if path == top or top in path.parents)
            break


def _mounts(root: Path) -> Iterator[tuple[int, set[str], str, str]]:
    """(version, controllers, the group at its top, place) of each file system of groups (proc_pid_mountinfo(5))."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) > 4 and kinds[0] in ("cgroup", "cgroup2"):
            place = fields[4].replace("\\040", " ")
            yield 2 if kinds[0] == "cgroup2" else 1, set(kinds[-1].split(",")), fields[3], place


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in the file; None for "max", "-1" and no file."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _table(path: Path) -> dict[str, int]:
    numbers = {}
    for line in _text(path).splitlines():
        with suppress(ValueError):
            name, value = line.split()
            numbers[name] = int(value)
    return numbers


def _count(text: str) -> int:
    """How many numbers a list such as 0-3,8 holds."""
    count = 0
    with suppress(ValueError):
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
    return count
