"""Signs of life of a process that reads a checkpoint in one call: beats (heartbeat.py) as long as its bytes grow.

A thread writes them, and only for bytes that were read meanwhile: a read that hangs is silent, as any other work.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retool_mcore.state import background, heartbeat

EVERY_S = 5.0
LEAST_BYTES_S = 2**18  # other threads of the process look into /proc and read logs, which is less


def bytes_read() -> int:
    """Bytes that this process has read: by system calls, from devices, and by faults in files that it has mapped."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt * resource.getpagesize()
    with suppress(OSError, ValueError, KeyError):  # a kernel without this count
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return faults + int(counts["rchar"]) + int(counts["read_bytes"])
    return faults


@contextmanager
def beating() -> Iterator[None]:
    """Beat while the body reads, under the name of this process's rank (RANK)."""
    name = f"load-{os.environ.get('RANK', '0')}"
    start = before = bytes_read()

    def look() -> bool:
        nonlocal before
        now = bytes_read()
        if now - before >= LEAST_BYTES_S * EVERY_S:
            heartbeat.beat(name, heartbeat.LOAD, done=now - start)
        before = now
        return False

    try:
        with background.looking(EVERY_S, look):
            yield
    finally:
        heartbeat.beat(name, heartbeat.LOAD, done=bytes_read() - start)
