"""What `sandbox.preload` costs and saves, by set of packages: start, memory, and programs that import them.

python -m benchmarks.sandbox.preload [--sets "" numpy numpy,sympy numpy,scipy,sympy]
"""

import argparse
import asyncio
import os
import time

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES, closed_loop, pss_mb, summary
from benchmarks.sandbox.speed import PROGRAMS
from retool_mcore.sandbox.local import LocalSandbox
from tests.support.hostile import hostile_runner

SETS = ["", "numpy", "numpy,sympy", "numpy,scipy,sympy", "numpy,scipy,sympy,pandas"]


async def measured(modules: list[str], budget_s: float) -> dict:
    before = set(hostile_runner.children(os.getpid()))
    started = time.monotonic()
    box = LocalSandbox(timeout_s=60.0, workers=4, preload=modules)
    await box.run("1")
    first_s = time.monotonic() - started
    await asyncio.sleep(1.5)
    (server,) = set(hostile_runner.children(os.getpid())) - before
    tree = [server, *hostile_runner.descendants(server)]
    row = {"preload": ", ".join(modules) or "nothing", "first_run_s": round(first_s, 2)}
    row |= {"all_processes_pss_mb": round(sum(map(pss_mb, tree)), 1), "processes": len(tree)}
    row["warm_interpreter_pss_mb"] = round(pss_mb(box.stats()["pids"][1]), 1)
    for program in ("print(1)", "numpy", "sympy"):

        async def run(code=PROGRAMS[program]):
            result = await box.run(code)
            if result.status != "success":
                raise RuntimeError(result.stderr)

        found = summary(*await closed_loop(run, 1, budget_s))
        row[program] = {"p50_ms": found["p50_ms"], "errors": found["errors"]}
    await box.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS, help="names of modules, separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each program")
    arguments = parser.parse_args()
    head, rows = provenance.made((*PACKAGES, "pandas")), []
    for names in arguments.sets:
        rows.append(asyncio.run(measured([name for name in names.split(",") if name], arguments.seconds)))
        print(rows[-1], flush=True)
    print(provenance.write("sandbox_preload", head, {"rows": rows}))


if __name__ == "__main__":
    main()
