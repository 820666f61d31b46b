"""kill -9 of sandbox services under load: what was lost, what was retried, and what it cost.

    python -m benchmarks.sandbox.failover                    # 64 clients of 20 programs each, three runs
    python -m benchmarks.sandbox.failover --clients 16 --turns 10

Three runs of the same load, side by side: one service left alone; one service killed in the middle and started again
a second later; two services of which one is killed and stays dead. Every client is a trajectory: it runs one program
after another and checks each answer. A program that comes back with another answer, or with none, is lost. Ends with 1
if any is.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time

from benchmarks import provenance
from retool_mcore.sandbox.service.pool import PoolSandbox

PROGRAM = "import time\ntime.sleep({sleep_s})\n{client} * 100_000 + {turn}"
DOWN_S = 1.0
SERVE = provenance.ROOT / "tests" / "support" / "serve_plainly.py"
TIMEOUT_S = 120.0


def start_service(workers: int, port: int = 0) -> tuple[subprocess.Popen, str]:
    """(process, url) once it answers; numpy and the like are left out, since no program here needs them."""
    config = json.dumps({"preload": [], "workers": workers})
    command = [sys.executable, str(SERVE), config, "127.0.0.1", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = process.stdout.readline()
    if not said.startswith("sandbox service: http://"):
        sys.exit("the service did not start")
    return process, said.split()[2]


async def load(box: PoolSandbox, options, answers: dict) -> None:
    """Every client's programs; answers: (client, turn) -> value."""

    async def client(number: int) -> None:
        for turn in range(options.turns):
            code = PROGRAM.format(sleep_s=options.sleep_s, client=number, turn=turn)
            answers[number, turn] = (await box.run(code, timeout_s=TIMEOUT_S)).value

    await asyncio.gather(*[client(number) for number in range(options.clients)])


async def measure(options, *, services: int, kill: bool, restart: bool) -> dict:
    running = [start_service(options.workers) for _ in range(services)]
    box, answers = PoolSandbox(hosts=[url for _, url in running]), {}
    total = options.clients * options.turns
    try:
        started = time.perf_counter()
        task = asyncio.create_task(load(box, options, answers))
        if kill:
            while len(answers) < total / 3:
                await asyncio.sleep(0.005)
            process, url = running[0]
            process.kill()
            process.wait()
            if restart:
                await asyncio.sleep(DOWN_S)
                port = int(url.rpartition(":")[2])
                running.append(await asyncio.to_thread(start_service, options.workers, port))
        await task
        wall_s = time.perf_counter() - started
    finally:
        for process, _ in running:
            process.kill()
            process.wait()
    right = sum(value == str(client * 100_000 + turn) for (client, turn), value in answers.items())
    stats = box.stats()
    counts = {name: stats[name] for name in ("retries", "failovers", "unhealthy", "busy")}
    return {"programs": total, "lost": total - right, **counts, "wall_s": round(wall_s, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20, help="programs of each client")
    parser.add_argument("--workers", type=int, default=32, help="programs at once in each service")
    parser.add_argument("--sleep-s", type=float, default=0.1, help="what each program does")
    options = parser.parse_args()
    runs = {
        "one service, left alone": {"services": 1, "kill": False, "restart": False},
        "one service, killed and started again": {"services": 1, "kill": True, "restart": True},
        "two services, one killed": {"services": 2, "kill": True, "restart": False},
    }
    results, head = {}, provenance.made(("aiohttp", "retool-mcore"))
    for name, how in runs.items():
        found = results[name] = asyncio.run(measure(options, **how))
        alone_s = results["one service, left alone"]["wall_s"]
        found["wall_ratio"] = round(found["wall_s"] / alone_s, 2)
        print(
            f"{name:40s} programs {found['programs']}  lost {found['lost']}  retried {found['retries']}  "
            f"failed over {found['failovers']}  {found['wall_s']:.1f} s ({found['wall_ratio']:.2f}x of undisturbed)"
        )
    provenance.write("sandbox_failover", head, {"options": vars(options), "results": results})
    return int(any(found["lost"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
