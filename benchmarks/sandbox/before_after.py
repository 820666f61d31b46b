"""The sandbox of two checkouts, in turns in one run: runs/s and times of `print(1)`.

python -m benchmarks.sandbox.before_after --before CHECKOUT [--rounds 5] [--clients 1 16 128]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES, closed_loop, summary

# The other checkout's package, and this one's benchmarks.
CHILD = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import retool_mcore
sys.path[0] = sys.argv[2]
from benchmarks.sandbox.before_after import measured
print(json.dumps(asyncio.run(measured([int(n) for n in sys.argv[4:]], float(sys.argv[3])))))
"""


async def measured(clients: list[int], cell_s: float) -> dict:
    """{clients: summary} of whatever retool_mcore is on the path."""
    from benchmarks.sandbox.rivals import Ours

    ours, found = Ours(max(clients)), {}
    await ours.start()
    for count in clients:
        found[str(count)] = summary(*await closed_loop(lambda: ours.run("print(1)"), count, cell_s))
    await ours.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--cell-s", type=float, default=3.0)
    parser.add_argument("--result", default="sandbox_before_after")
    arguments = parser.parse_args()
    head, rounds = provenance.made(PACKAGES), {"before": [], "after": []}
    for _ in range(arguments.rounds):
        for which, checkout in (("before", arguments.before.resolve()), ("after", provenance.ROOT)):
            command = [sys.executable, "-P", "-c", CHILD, str(checkout), str(provenance.ROOT), str(arguments.cell_s)]
            done = subprocess.run([*command, *map(str, arguments.clients)], check=True, stdout=-1, text=True)
            rounds[which].append(json.loads(done.stdout))
    table = []
    for count in map(str, arguments.clients):
        row = {"clients": int(count)}
        for which, found in rounds.items():
            for key in ("runs_per_s", "p50_ms", "p99_ms"):
                row[f"{key}_{which}"] = statistics.median(one[count][key] for one in found)
        table.append(row)
        print(row, flush=True)
    print(provenance.write(arguments.result, head, {"rounds": arguments.rounds, "medians": table}))


if __name__ == "__main__":
    main()
