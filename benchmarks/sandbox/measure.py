"""What the sandbox benchmarks share: load, percentiles, memory of process trees."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PACKAGES = ("numpy", "scipy", "sympy", "aiohttp")


async def closed_loop(
    run: Callable[[], Awaitable], clients: int, budget_s: float
) -> tuple[list[float], float, list[str]]:
    """`clients` tasks call `run` again and again for `budget_s`, each at least once.

    Returns latencies in s (ascending), the whole duration in s, and the errors.
    """
    latencies, errors = [], []
    started = time.monotonic()

    async def client():
        while True:
            before = time.monotonic()
            try:
                await run()
            except RuntimeError as error:
                errors.append(str(error))
            latencies.append(time.monotonic() - before)
            if time.monotonic() - started > budget_s:
                return

    await asyncio.gather(*[client() for _ in range(clients)])
    return sorted(latencies), time.monotonic() - started, errors


def percentile(ascending: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def summary(latencies: list[float], duration_s: float, errors: list[str]) -> dict:
    return {
        "runs": len(latencies),
        "runs_per_s": round(len(latencies) / duration_s, 2),
        "p50_ms": round(1e3 * percentile(latencies, 0.5), 2),
        "p99_ms": round(1e3 * percentile(latencies, 0.99), 2),
        "all_s": round(duration_s, 2),
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
    }


def pss_mb(pid: int) -> float:
    """Memory of one process in MB, each shared page divided among those that share it; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
