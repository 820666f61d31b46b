"""kill -9 in every stage, then on: nothing is lost, nothing is done twice. The calls are counted by the server.

pytest -s tests/coldstart/test_coldstart_kill.py     # prints the table of docs/coldstart.md
"""

import asyncio
import json
import os
import signal

from coldstart_runs import config

# Loaded before the forks, which would each take seconds for it.
from transformers import AutoTokenizer  # noqa: F401

from retool_mcore.coldstart import pipeline
from retool_mcore.coldstart.rows import Store
from tests.support.coldstart.model_double import recorded_replies, serving
from tests.support.coldstart.recorded_rewrites import KINDS, recorded, write_source

ROWS = recorded(15)
STAGES = [
    "read",
    "normalise",
    "exact-duplicates",
    "near-duplicates",
    "decontaminate",
    "rule-verification",
    "judge-verification",
    "rewrite",
    "format-verification",
    "execution",
    "answer-verification",
    "selection",
]


def killed_in(stage: str, settings, row: int = 2) -> int:
    """Runs `settings` in a fork that kills itself after `row` rows of `stage`; returns the signal it died of."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        add = Store.add

        def counted(store, outcome):
            add(store, outcome)
            if store.path.stem.endswith(stage) and store.rows >= row:
                if stage not in ("judge-verification", "rewrite"):  # There the cache alone may know of the call.
                    store.sync()
                os.kill(os.getpid(), signal.SIGKILL)

        Store.add = counted
        asyncio.run(pipeline.run(settings))
    finally:
        os._exit(1)


def test_a_kill_in_every_stage_loses_nothing_and_repeats_no_call(tmp_path):
    source = write_source(ROWS, tmp_path / "source.jsonl")
    with serving(recorded_replies(ROWS)) as double:
        model = {"rewrite__model__concurrency": 1}
        settings = config(tmp_path / "out", source, double.url, **model)
        for stage in STAGES:
            assert killed_in(stage, settings) == -signal.SIGKILL, stage
            (path,) = (tmp_path / "out" / "stages").glob(f"*-{stage}.jsonl")
            noted, asked = len(path.read_text().splitlines()) - 1, sum(double.calls.values())
            print(f"killed in {stage:20} {noted:2} rows of it on disk, {asked:2} calls answered by the server")
        counts = asyncio.run(pipeline.run(settings))
        rows = {count.stage: count.rows_in for count in counts}
        asked, repeated = sum(double.calls.values()), sum(number > 1 for number in double.calls.values())
        due = rows["judge verification"] + rows["rewrite"]
        print(f"finished: {asked} calls answered by the server for {due} due, {repeated} of them repeated")
        assert asked == due and not repeated
    dropped = {record["row"]: record["stage"] for record in map(json.loads, (tmp_path / "out/dropped.jsonl").open())}
    assert {(row.kind, dropped.get(number)) for number, row in enumerate(ROWS)} == set(KINDS.items())
