"""`retool coldstart run`: the stages one after another, each from where a stop left it.

Rows go through a function in processes or in tasks, with what goes wrong for one row kept to that row.
"""

import asyncio
import fcntl
import multiprocessing
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from retool_mcore.coldstart import report
from retool_mcore.coldstart.client import CallCache
from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.rows import Drop, Outcome, Row, Store, content_key
from retool_mcore.coldstart.stages import Services, Stage, build
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError
from retool_mcore.resources import processors
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


@dataclass
class Counted:
    """One stage's account: rows_in == rows_out + sum(drops). `seconds` and `new_rows` are of this start alone."""

    stage: str
    rows_in: int
    rows_out: int
    drops: dict[str, int]
    new_rows: int = 0
    seconds: float = 0.0


async def run(config: Config) -> list[Counted]:
    """Run or resume every stage, then write the data sets and the report; returns the account of each stage.

    Raises UserError before any work when the source, an endpoint or the sandbox is not there, and when one is lost
    for longer than the retries; a later call goes on after the last finished row.
    """
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    processes = config.processes or processors()
    with _alone(folder):
        cache = CallCache(folder / "calls.sqlite")
        services = Services(config, cache)
        try:
            tokenizer = config.select.tokenizer
            if tokenizer == "tiny":
                tokenizer = str(make_tiny_model(folder / "tiny", 0))
            stages = build(config, services, tokenizer)
            stores = _stores(stages, folder / "stages")
            for stage, store in zip(stages, stores, strict=True):
                if stage.check and not store.ended and (checked := stage.check()) is not None:
                    await checked
            counts, before = [], None
            for stage, store in zip(stages, stores, strict=True):
                counts.append(await _run_stage(stage, store, before, processes))
                before = store
            report.write(config, stores, counts, services.calls(cache), tokenizer)
            return counts
        finally:
            await services.close()
            cache.close()


async def _run_stage(stage: Stage, store: Store, before: Store | None, processes: int) -> Counted:
    started, had = perf_counter(), store.rows
    if not store.ended:
        bar = tqdm(total=before.kept if before else None, initial=had, desc=stage.name, unit=" rows", disable=None)

        def add(outcome) -> None:
            store.add(outcome)
            bar.update()

        try:
            if stage.wait:
                await outcomes_async(stage.wait, _left(before, store), stage.concurrency, add)
            else:
                for outcome in _in_order(stage, before, store, processes):
                    add(outcome)
            store.end()
        finally:
            store.close()
            bar.close()
    rows_in = before.kept if before else store.rows
    if store.rows != rows_in:
        raise RuntimeError(f"{store.path} holds {store.rows} of {rows_in} rows: remove it and start again")
    seconds, new = perf_counter() - started, store.rows - had
    return Counted(stage.name, rows_in, store.kept, dict(store.drops.most_common()), new, seconds)


def _in_order(stage: Stage, before: Store | None, store: Store, processes: int) -> Iterator[Outcome]:
    if stage.read:
        return stage.read()
    if stage.whole:
        return stage.whole(before.kept_rows, lambda function, rows: map_rows(function, rows, processes))
    return outcomes(stage.each, _left(before, store), processes)


def _left(before: Store, store: Store) -> Iterator[Row]:
    return (row for row in before.kept_rows() if row.key not in store.done)


def _stores(stages: list[Stage], folder: Path) -> list[Store]:
    """A store for each stage, whose fingerprint names all work up to it."""
    stores, fingerprint = [], ""
    for number, stage in enumerate(stages):
        fingerprint = content_key(fingerprint, stage.name, stage.depends)
        path = folder / f"{number:02d}-{stage.name.replace(' ', '-')}.jsonl"
        stores.append(Store(path, fingerprint, resume=bool(stage.each or stage.wait)))
    return stores


@contextmanager
def _alone(folder: Path):
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another cold-start run writes to {folder}: wait for its end or set output.") from None
        yield
