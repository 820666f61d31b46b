"""Many mixed programs in one sandbox, and what has grown after them: memory, files, zombies, descriptors."""

import asyncio
import collections
import os
import random
import shutil
import tempfile
import time

from benchmarks.sandbox.measure import pss_mb
from tests.support.hostile import hostile_runner

CLIENTS = 8
FORKS = "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(99)"
# (share, program, status): what a policy writes, with more trouble than it usually makes.
MIX = [
    (50, "print({n})", "success"),
    (15, "import numpy\nnumpy.arange(1000).sum()", "success"),
    (10, "import sympy\nsympy.expand('(x + 1)**3')", "success"),
    (10, "1 / 0", "error"),
    (5, "def f(:", "error"),
    (2, FORKS, "success"),
    (2, "open('file', 'wb').write(bytes(10**6))\nimport os\nos.mkdir('folder')", "success"),
    (2, "while True: pass", "timeout"),
    (1, "x = bytearray(1 << 40)", "memory"),
    (1, "print('x' * 100_000)", "output"),
    (1, "import os\nos.kill(os.getpid(), 9)", "killed"),
    (1, "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()", "success"),
]  # fmt: skip
TIMEOUT_S, SHORT_TIMEOUT_S = 60.0, 0.05
SETTLE_S = 20.0


async def soak(runs: int) -> dict:
    """Counts before (after a tenth of the runs, when caches are full) and after; statuses, and which were wrong."""
    folder = tempfile.tempdir = tempfile.mkdtemp(prefix="retool-soak-")
    box = hostile_runner.make_box("namespaces", timeout_s=TIMEOUT_S, workers=CLIENTS)
    statuses, wrong = collections.Counter(), collections.Counter()
    generator = random.Random(1)
    shares = [share for share, _, _ in MIX]

    async def client(count: int):
        for number in range(count):
            _, code, expected = generator.choices(MIX, shares)[0]
            timeout_s = SHORT_TIMEOUT_S if expected == "timeout" else TIMEOUT_S
            result = await box.run(code.replace("{n}", str(number)), timeout_s=timeout_s)
            statuses[str(result.status)] += 1
            if result.status != expected:
                wrong[f"{expected} was {result.status}"] += 1

    async def load(count: int):
        await asyncio.gather(*[client(count // CLIENTS) for _ in range(CLIENTS)])

    try:
        await box.start()
        started = time.monotonic()
        await load(runs // 10)
        before = await _counts(folder, None)
        await load(runs - runs // 10)
        duration_s = time.monotonic() - started
        after = await _counts(folder, before)
        level = box.level
    finally:
        await box.close()
        shutil.rmtree(folder, ignore_errors=True)
        tempfile.tempdir = None
    found = {
        "level": level,
        "runs": sum(statuses.values()),
        "runs_per_s": round(sum(statuses.values()) / duration_s, 1),
        "statuses": dict(statuses),
        "wrong_status": dict(wrong),
        "before": before,
        "after": after,
    }
    print(found)
    return found


async def _counts(folder: str, limit: dict | None) -> dict:
    """Counts of an idle sandbox; waits until processes that are still ending are gone."""
    deadline = time.monotonic() + (SETTLE_S if limit else 3.0)
    while True:
        tree = [
            pid for child in hostile_runner.children(os.getpid()) for pid in (child, *hostile_runner.descendants(child))
        ]
        servers = hostile_runner.children(os.getpid())
        found = {
            "processes": len(tree),
            "zombies": sum(hostile_runner.state(pid) == "Z" for pid in tree),
            "server_pss_mb": round(sum(map(pss_mb, servers)), 1),
            "tree_pss_mb": round(sum(map(pss_mb, tree)), 1),
            "caller_pss_mb": round(pss_mb(os.getpid()), 1),
            "server_descriptors": sum(map(hostile_runner.descriptors, servers)),
            "caller_descriptors": hostile_runner.descriptors(os.getpid()),
            "files": hostile_runner.count_files(folder),
        }
        counted = ("processes", "zombies", "server_descriptors", "caller_descriptors", "files")
        if time.monotonic() > deadline or (limit and all(found[name] <= limit[name] for name in counted)):
            return found
        await asyncio.sleep(0.2)
