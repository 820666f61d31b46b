"""How long the viewer takes with a large run: its list, its search and its overview, and the page in headless Chromium.

Makes a run of small trajectories and of as many metrics a step as RL writes. `first list` is what the server takes from
its start to its first answer, which holds the newest steps; `all read` the time until every step is in memory, in
answers of at most 0.2 s; the others are answers once all is read. `painted` is the page's own clock, from its request
(Chromium's own start lies before) to the frame in which the first row, or the first curve, stands. The worst of each is
told as well as the median, and processor seconds as well as the clock's, which on a busy machine are mostly others'.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
from aiohttp.test_utils import TestClient, TestServer
from pyarrow import parquet

from benchmarks import provenance
from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step
from retool_mcore.view.curves import Curves
from retool_mcore.view.server import application
from retool_mcore.view.source import Source
from tests.support.browser.browser import CHROMIUM, browser

PACKAGES = ("pyarrow", "aiohttp", "tokenizers", "numpy")
METRICS = 230  # a step
# Of a page, before its own script: the time of the first frame with a row or a curve.
REPORT = """const seen = setInterval(() => {
  if (!document.querySelector(".body .row, path.curve")) return;
  clearInterval(seen);
  const asked = performance.getEntriesByType("navigation")[0].requestStart;
  requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now() - asked; }));
}, 2);"""
ASKED = {  # name in the result -> query of the list
    "page_s": {"first": "500000"},
    "search_s": {"text": ""},  # filled by a text that is there
    "filter_s": {"status": "timeout", "score_min": "1", "answer": "wrong"},
    "error_s": {"error": "error: NameError: name … is not defined"},
    "sort_s": {"sort": "score"},
    "sort_by_text_s": {"sort": "text"},
}


def make_record(row: int, tokens: int, random: np.random.Generator) -> dict:
    ids, turn = random.integers(10, 200, tokens), tokens // 3
    spans = [("policy", 0, turn), ("observation", turn, 2 * turn), ("policy", 2 * turn, tokens)]
    status = ("success", "error", "timeout", "success")[row % 4]
    stderr = (
        f"Traceback (most recent call last):\nNameError: name 'x{row}' is not defined\n" if status == "error" else ""
    )
    call = {"code": "print(1)", "malformed": False, "status": status, "stdout": "1\n", "stderr": stderr, "value": None}
    note = {"programs": 1, "boxed": False, "fakes": [], "generate_s": 0.5, "tool_s": 0.2}
    return {
        "step": 1,
        "uid": f"{row // 8}",
        "sample": row % 8,
        "index": row // 8,
        "data_source": ("aime", "math")[row // 8 % 2],
        "score": float(row % 4) - 1,
        "acc": float(row % 2),
        "pred": "1",
        "ground_truth": "1",
        "turns": 2,
        "finish": "answer",
        "generate_s": 1.0,
        "tool_s": 0.2,
        "started": 0.0,
        "prompt_ids": ids[:20],
        "response_ids": ids,
        "response_mask": np.ones(tokens, bool),
        **{name: random.normal(size=tokens).astype(np.float32) for name in ("logprobs", "old_log_probs", "advantages")},
        "spans": [{"kind": kind, "start": start, "end": end} for kind, start, end in spans],
        "calls": [call | {"duration_s": 0.2, "turn": 0, "start": 5, "truncated": False}],
        "turn_notes": [note, note],
    }


def make_run(folder: Path, trajectories: int, steps: int, tokens: int) -> Path:
    """The first step is written as RL writes it; the others are it with other steps, groups and problems."""
    random, rows = np.random.default_rng(0), trajectories // steps
    (folder / "model").mkdir(parents=True)
    build_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    first = write_step(folder / "rl" / "trajectories", 1, [make_record(row, tokens, random) for row in range(rows)])
    table = parquet.read_table(first)
    groups = -(-rows // 8)
    problems, uids = table.column("index").to_numpy(), table.column("uid").to_pylist()
    for step in range(2, steps + 1):
        own = {
            "step": pyarrow.array(np.full(rows, step, np.int32)),
            "uid": pyarrow.array([f"{step}-{uid}" for uid in uids]),
            "index": pyarrow.array(problems + step % 50 * groups),  # every problem comes again after 50 steps
        }
        changed = table
        for name, values in own.items():
            changed = changed.set_column(table.column_names.index(name), table.schema.field(name), values)
        parquet.write_table(changed, first.with_name(f"step_{step:06d}.parquet"), compression="zstd")
    names = [*Curves(folder).stages["rl"].names, *(f"other/{n}" for n in range(METRICS))][:METRICS]
    (folder / "rl" / "metrics").mkdir()
    with (folder / "rl" / "metrics" / "attempt_001.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            values = dict(zip(names, random.normal(1, 0.1, len(names)).tolist(), strict=True))
            file.write(json.dumps({"step": step, "data": values}) + "\n")
    return folder


class Clock:
    """Seconds and processor seconds of what runs in it."""

    def __enter__(self) -> "Clock":
        self.begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.processor = time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]


def memory_mb() -> float:
    """The most that this process held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def answers(run: Path, repeats: int) -> dict:
    """What the server takes, by name."""
    found: dict = {"first_list_s": [], "first_list_processor_s": [], "overview_s": [], "overview_processor_s": []}
    for _ in range(repeats):
        with Clock() as clock:
            async with TestClient(TestServer(application([run]))) as client:
                assert (await (await client.get("/api/list")).json())["rows"]
        found["first_list_s"].append(clock.seconds)
        found["first_list_processor_s"].append(clock.processor)
    before = memory_mb()
    async with TestClient(TestServer(application([run]))) as client:
        slowest, answer = 0.0, {"unread": 1}
        with Clock() as whole:
            while answer["unread"]:
                with Clock() as clock:
                    answer = await (await client.get("/api/list")).json()
                slowest = max(slowest, clock.processor)
        found |= {"all_read_s": whole.seconds, "all_read_processor_s": whole.processor}
        found["slowest_answer_processor_s"] = slowest
        ASKED["search_s"]["text"] = answer["rows"][0]["text"][:3]
        found["memory_mb"] = memory_mb() - before
        for name, query in ASKED.items():
            times, processor = [], []
            for _ in range(repeats):
                await client.get("/api/list", params={"count": "0", "step": "0"})  # so that nothing is remembered
                with Clock() as clock:
                    total = (await (await client.get("/api/list", params=query)).json())["total"]
                times.append(clock.seconds)
                processor.append(clock.processor)
            found |= {name: times, name.replace("_s", "_processor_s"): processor, name.replace("_s", "_found"): total}
        for _ in range(repeats + 1):
            with Clock() as clock:
                await (await client.get("/api/overview")).read()
            found["overview_s"].append(clock.seconds)
            found["overview_processor_s"].append(clock.processor)
    return found


async def painted(run: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds until the first row and until the first curve."""
    found: dict[str, list[float]] = {"list_painted_s": [], "overview_painted_s": []}
    app = application([run])
    async with TestServer(app) as server, browser() as tab:
        await tab.ask("Page.addScriptToEvaluateOnNewDocument", source=REPORT)
        for _ in range(repeats):
            for name, page in (("list_painted_s", "#/list"), ("overview_painted_s", "#/")):
                await tab.ask("Page.navigate", url="about:blank")
                await tab.ask("Page.navigate", url=f"{server.make_url('/')}{page}")
                found[name].append(await tab.until("window.painted", 120) / 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=30, help="of a response (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=provenance.RESULTS / "view.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "run", args.trajectories, args.steps, args.tokens)
        head = provenance.made(PACKAGES)
        found = asyncio.run(answers(run, args.repeats))
        columns = Source(run)
        columns.refresh(float("inf"))
        found["columns_mb"] = sum(values.nbytes for values in columns.data()[0].values()) / 1e6
        if CHROMIUM:
            found |= asyncio.run(painted(run, args.repeats))
    print(f"load {head['machine']['load']} on {os.cpu_count()} cores; median and worst of {args.repeats}")
    for name, value in found.items():
        values = value if isinstance(value, list) else [value]
        worst = f", worst {max(values):.3f}" if len(values) > 1 else ""
        print(f"{name}: {statistics.median(values):.3f}{worst}")
    rounded = {k: [round(v, 4) for v in own] if isinstance(own, list) else round(own, 2) for k, own in found.items()}
    sizes = {"trajectories": args.trajectories, "steps": args.steps, "tokens": args.tokens, "metrics": METRICS}
    provenance.write(args.output, head, sizes | rounded)


if __name__ == "__main__":
    main()
