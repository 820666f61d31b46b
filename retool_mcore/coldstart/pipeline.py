"""`retool coldstart run`: the stages one after another, each from where a stop left it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from tqdm import tqdm

from retool_mcore.coldstart import output
from retool_mcore.coldstart.client import CallCache
from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.parallel import map_rows, outcomes, outcomes_async
from retool_mcore.coldstart.rows import Outcome, Row, content_key
from retool_mcore.coldstart.stages import Services, Stage, build
from retool_mcore.coldstart.store import Store
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError


@dataclass
class Counted:
    """One stage's account: rows_in == rows_out + sum(drops). `seconds` and `new_rows` are of this start alone."""

    stage: str
    rows_in: int
    rows_out: int
    drops: dict[str, int]
    new_rows: int = 0
    seconds: float = 0.0
    path: Path = field(default=Path(), repr=False)


async def run(config: Config) -> list[Counted]:
    """Run or resume every stage, then write the data sets and the report; returns the account of each stage.

    Raises UserError before any work when the source, an endpoint or the sandbox is not there, and when one is lost
    for longer than the retries; a later call goes on after the last finished row.
    """
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    processes = config.processes or os.cpu_count() or 1
    with _alone(folder):
        cache = CallCache(folder / "calls.sqlite")
        services = Services(config, cache, processes)
        try:
            tokenizer = config.select.tokenizer
            if tokenizer == "tiny":
                tokenizer = str(make_tiny_model(folder / "tiny", 0))
            stages = build(config, services, tokenizer, processes)
            stores = _stores(stages, folder / "stages")
            for stage, store in zip(stages, stores, strict=True):
                if stage.check and not store.ended and (checked := stage.check()) is not None:
                    await checked
            counts, before = [], None
            for stage, store in zip(stages, stores, strict=True):
                counts.append(await _run_stage(stage, store, before, processes))
                before = store
            output.write(config, stores, counts, services.calls(cache), tokenizer)
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
    return Counted(stage.name, rows_in, store.kept, dict(store.drops.most_common()), new, seconds, store.path)


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
