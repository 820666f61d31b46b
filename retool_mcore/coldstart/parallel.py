"""Rows through a function, in processes or in tasks, with what goes wrong for one row kept to that row."""

import asyncio
import multiprocessing
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from retool_mcore.coldstart.rows import Drop, Outcome, Row
from retool_mcore.runner.processes import signal_at_parents_death

CHUNK_ROWS = 32
# As long as it takes to start the processes: work that ends sooner is not worth them.
_WORTH_S = 5.0
_IN_FLIGHT = 4  # chunks a process

_function: Callable | None = None


def map_rows(function: Callable, rows: Iterable, processes: int) -> Iterator[Any]:
    """`map(function, rows)` in order: in this process, and when that takes long, the rest over `processes`, to each of
    which `function` is sent once. Memory is bounded: at most a few chunks wait.
    """
    rows, start = iter(rows), perf_counter()
    for row in rows:
        yield function(row)
        if processes > 1 and perf_counter() - start > _WORTH_S:
            break
    else:
        return
    # Forking this process, with its threads, could copy a held lock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(function,)) as pool:
        waiting: deque = deque()
        while True:
            while len(waiting) < _IN_FLIGHT * processes and (chunk := list(islice(rows, CHUNK_ROWS))):
                waiting.append(pool.submit(_run, chunk))
            if not waiting:
                return
            yield from waiting.popleft().result()


def outcomes(function: Callable[[Row], Row], rows: Iterable[Row], processes: int) -> Iterator[Outcome]:
    """The outcome of each row, in order."""
    return map_rows(partial(_outcome, function), rows, processes)


async def outcomes_async(
    function: Callable[[Row], Awaitable[Row]], rows: Iterator[Row], concurrency: int, add: Callable[[Outcome], None]
) -> None:
    """Calls `add` with the outcome of each row as it ends, `concurrency` at a time.

    What is no matter of one row (UserError) ends all tasks and is raised.
    """

    async def work() -> None:
        for row in rows:
            try:
                outcome = Outcome(row.key, row.index, await function(row))
            except Drop as drop:
                outcome = Outcome(row.key, row.index, None, drop.reason, drop.detail)
            add(outcome)

    tasks = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _outcome(function: Callable[[Row], Row], row: Row) -> Outcome:
    try:
        return Outcome(row.key, row.index, function(row))
    except Drop as drop:
        return Outcome(row.key, row.index, None, drop.reason, drop.detail)
    except (RecursionError, MemoryError) as error:
        return Outcome(row.key, row.index, None, "cannot be processed", type(error).__name__)


def _start(function: Callable) -> None:
    global _function
    signal_at_parents_death(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _function = function


def _run(chunk: list) -> list:
    return [_function(item) for item in chunk]
