"""The code sandbox against other ways to run a program, side by side in one run.

python -m benchmarks.sandbox.speed                 everything (some minutes on an idle machine)
python -m benchmarks.sandbox.speed --quick         about a minute
python -m benchmarks.sandbox.speed --fusion URL    also a running SandboxFusion service
python -m benchmarks.sandbox.speed neighbours      p99 beside programs that take all they can get
python -m benchmarks.sandbox.speed load            an innocent program beside sixteen hostile ones on four slots
python -m benchmarks.sandbox.speed soak --runs N   mixed programs, and what has grown after them
python -m benchmarks.sandbox.speed table   the tables out of benchmarks/results (--write: into docs/measured/sandbox.md)
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES, closed_loop, percentile, pss_mb, summary
from benchmarks.sandbox.rivals import TIMEOUT_S, Bubblewrap, Fork, Fusion, Ours, Subprocess
from benchmarks.sandbox.soak import soak
from benchmarks.sandbox.tables import print_tables
from tests.support.hostile import hostile_runner

PROGRAMS = {
    "print(1)": "print(1)",
    "numpy": "import numpy\nprint(int(numpy.arange(1000).sum()))",
    "sympy": "import sympy\nprint(sympy.expand((sympy.Symbol('x') + 1) ** 3))",
    "100 ms CPU": "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nprint(1)",
    "1 s sleep": "import time\ntime.sleep(1)\nprint(1)",
}
TASKS = ("compare", "neighbours", "load", "soak", "table")
CLIENTS = (1, 16, 128, 256)
HOGS = {
    "CPU": "while True: pass",
    "memory": "x = []\nwhile True:\n    x.append(bytearray(b'x') * 10**6)",
    "files": "n = 0\nwhile True:\n    n += 1\n    open(str(n % 40), 'wb').write(bytes(10**6))",
    "fork": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
}
# (clients, hogs) beside each other: as many as two cores can hold, and twice as many.
BESIDE, HOG_TIMEOUT_S = ((1, 1), (2, 2)), 2.0
SLOTS, HOSTILE = 4, 16


async def compare(arguments) -> dict:
    """Cells of (program, clients, system), the systems in turns so that a busy moment of the machine hits them all."""
    systems = [Ours(max(arguments.clients)), Subprocess(), Bubblewrap(), Fork()]
    if arguments.fusion:
        systems.append(Fusion(arguments.fusion))
    left_out = {}
    for system in systems[:]:
        try:
            await system.start()
        except (RuntimeError, OSError) as error:
            left_out[system.name] = str(error).strip()
            systems.remove(system)
            print(f"left out: {system.name}: {error}", flush=True)
    cells = []
    alone_s = {}
    for program, code in PROGRAMS.items():
        expected = await systems[0].run(code)
        for clients in arguments.clients:
            for system in systems:
                cost_s = alone_s.get((program, system.name), 0) * (
                    1 if program == "1 s sleep" else clients / os.cpu_count()
                )
                cell = {"program": program, "clients": clients, "system": system.name}
                if cost_s > arguments.longest_cell_s:
                    cells.append(cell | {"left_out": f"one run for each client would take about {cost_s:.0f} s"})
                    continue

                async def run(system=system, code=code, expected=expected):
                    printed = await system.run(code)
                    if printed != expected:
                        raise RuntimeError(f"printed {printed!r} instead of {expected!r}")

                latencies, duration_s, errors = await closed_loop(run, clients, arguments.cell_s)
                if clients == 1:
                    alone_s[program, system.name] = percentile(latencies, 0.5)
                cells.append(cell | summary(latencies, duration_s, errors))
                print(*cells[-1].values(), flush=True)
    for system in systems:
        await system.close()
    return {"level": systems[0].box.level, "cells": cells, "left_out": left_out}


async def neighbours(budget_s: float) -> list[dict]:
    """p99 of print(1) by clients alone and then beside hogs, for each kind of hog."""
    ours = Ours(16)
    await ours.start()

    async def hog(code):
        while True:
            await ours.box.run(code, timeout_s=HOG_TIMEOUT_S)

    found = []
    for kind, code in HOGS.items():
        for clients, count in BESIDE:
            quiet = await closed_loop(lambda: ours.run("print(1)"), clients, budget_s)
            hogs = [asyncio.create_task(hog(code)) for _ in range(count)]
            await asyncio.sleep(0.3)
            beside = await closed_loop(lambda: ours.run("print(1)"), clients, budget_s)
            for task in hogs:
                task.cancel()
            await asyncio.gather(*hogs, return_exceptions=True)
            quiet, beside = summary(*quiet), summary(*beside)
            ratio = round(beside["p99_ms"] / quiet["p99_ms"], 2)
            cell = {"kind": kind, "clients": clients, "hogs": count}
            found.append(cell | {"alone": quiet, "beside": beside, "p99_ratio": ratio})
            print(*cell.values(), ratio, flush=True)
    await ours.close()
    return found


async def load(budget_s: float) -> dict:
    """print(1) on four slots alone and beside sixteen callers of hostile programs; and 256 sleeps of a second at once.

    A time is counted twice: whole, and without the wait for a slot ("own").
    """
    ours = Ours(SLOTS)
    own_s: dict[str, list[float]] = {}
    run = ours.box._run

    async def timed(request, timeout_s, session):
        started = time.monotonic()
        try:
            return await run(request, timeout_s, session)
        finally:
            if timeout_s == TIMEOUT_S:
                own_s.setdefault(phase, []).append(time.monotonic() - started)

    async def hostile(code):
        while True:
            await ours.box.run(code, timeout_s=HOG_TIMEOUT_S)

    ours.box._run = timed
    phase = "start"
    await ours.start()
    rows = []
    for kind in (*HOGS, "all"):
        row = {"kind": kind}
        for phase in ("alone", "beside"):
            own_s.clear()
            codes = [HOGS[kind]] * HOSTILE if kind != "all" else [*HOGS.values()] * HOSTILE
            tasks = [asyncio.create_task(hostile(code)) for code in codes[:HOSTILE]] if phase == "beside" else []
            await asyncio.sleep(0.3)
            found = summary(*await closed_loop(lambda: ours.run("print(1)"), 1, budget_s))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            times = sorted(own_s[phase])
            row[phase] = {"runs": found["runs"], "whole_p50_ms": found["p50_ms"], "whole_p99_ms": found["p99_ms"]}
            row[phase] |= {"own_p50_ms": round(1e3 * percentile(times, 0.5), 2)}
            row[phase] |= {"own_p99_ms": round(1e3 * percentile(times, 0.99), 2)}
        row["own_p50_ratio"] = round(row["beside"]["own_p50_ms"] / row["alone"]["own_p50_ms"], 2)
        row["own_p99_ratio"] = round(row["beside"]["own_p99_ms"] / row["alone"]["own_p99_ms"], 2)
        rows.append(row)
        print(row, flush=True)
    await ours.close()
    many = Ours(256)
    await many.start()
    _, sleeps_s, errors = await closed_loop(lambda: many.run(PROGRAMS["1 s sleep"]), 256, 0.0)
    await many.close()
    print("256 sleeps of 1 s:", round(sleeps_s, 2), errors[:1], flush=True)
    return {"rows": rows, "sleeps_256_s": round(sleeps_s, 2)}


async def idle_memory() -> dict:
    """PSS of every process of an idle sandbox, and of one interpreter that imported the same modules for itself."""
    before = set(hostile_runner.children(os.getpid()))
    ours = Ours(16)
    await ours.start()
    await asyncio.gather(*[ours.run("print(1)") for _ in range(32)])
    await asyncio.sleep(2)
    (server,) = set(hostile_runner.children(os.getpid())) - before
    waiting = [pss_mb(pid) for pid in hostile_runner.descendants(server)]
    alone = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import numpy, scipy, sympy; print(1, flush=True); __import__('sys').stdin.read()",
        stdin=-1,
        stdout=-1,
    )
    await alone.stdout.readline()
    found = {
        "server_mb": round(pss_mb(server), 1),
        "waiting_processes": len(waiting),
        "waiting_mb_each": round(sum(waiting) / max(1, len(waiting)), 1),
        "waiting_mb_largest": round(max(waiting, default=0.0), 1),
        "own_interpreter_mb": round(pss_mb(alone.pid), 1),
    }
    alone.stdin.close()
    await alone.wait()
    await ours.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "task", nargs="?", default="compare", choices=("compare", "neighbours", "load", "soak", "table")
    )
    parser.add_argument("--quick", action="store_true", help="shorter cells, and none that takes more than 6 s")
    parser.add_argument("--fusion", metavar="URL", help="also measure the SandboxFusion service there")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--runs", type=int, default=100_000, help="programs of a soak")
    parser.add_argument("--write", action="store_true", help="table: put the tables into docs/measured/sandbox.md")
    parser.add_argument("--result", default=None, help="name of the JSON file in benchmarks/results")
    arguments = parser.parse_args()
    arguments.cell_s = 0.5 if arguments.quick else 5.0
    arguments.longest_cell_s = 6.0 if arguments.quick else 120.0
    if arguments.task == "table":
        print_tables(provenance.ROOT / "docs" / "measured" / "sandbox.md", arguments.write)
        return
    head, result = provenance.made(PACKAGES), {}
    if arguments.task == "soak":
        result |= asyncio.run(soak(arguments.runs))
        path = provenance.write(arguments.result or "sandbox_soak", head, result)
    elif arguments.task == "load":
        result |= asyncio.run(load(5.0 if arguments.quick else 20.0))
        path = provenance.write(arguments.result or "sandbox_load", head, result)
    elif arguments.task == "neighbours":
        result["autogroup"] = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
        result["neighbours"] = asyncio.run(neighbours(2.0 if arguments.quick else 10.0))
        path = provenance.write(arguments.result or "sandbox_neighbours", head, result)
    else:
        result["memory"] = asyncio.run(idle_memory())
        result |= asyncio.run(compare(arguments))
        path = provenance.write(arguments.result or "sandbox", head, result)
    print(path)


if __name__ == "__main__":
    main()
