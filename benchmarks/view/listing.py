"""How long the viewer takes to list 10,000 trajectories: its index, and the page in headless Chromium.

Makes a run of small trajectories, 20 steps of 500. `index` is what `retool view` reads before it listens, against
reading the same trajectories as JSON lines; `painted` is the page's own clock, from its request (Chromium's own start
lies before) to the frame in which the first row stands, all rows being in the page by then; `next list` is what the
server does once one more step was written. The worst of each is told as well as the median, and processor seconds as
well as the clock's, which on a busy machine are mostly those of others.
"""

import argparse
import asyncio
import gzip
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from aiohttp import web

from benchmarks import provenance
from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step
from retool_mcore.view.server import application, page
from retool_mcore.view.source import Source

FEW = 100  # trajectories of the page to compare with: what Chromium takes for any
PACKAGES = ("pyarrow", "aiohttp", "tokenizers")
# Reports the first frame after the first row is in the document.
REPORT = """<script>
const seen = setInterval(() => {
  if (!document.querySelector(".body .row")) return;
  clearInterval(seen);
  const asked = performance.getEntriesByType("navigation")[0].requestStart;
  const count = encodeURIComponent(document.querySelector(".count").textContent);
  requestAnimationFrame(() => requestAnimationFrame(() =>
    fetch(`painted?ms=${performance.now() - asked}&count=${count}`)));
}, 5);
</script></body>"""


def make_record(step: int, row: int, tokens: int, random: np.random.Generator) -> dict:
    ids = random.integers(10, 200, tokens)
    turn = tokens // 3
    spans = [("policy", 0, turn), ("observation", turn, 2 * turn), ("policy", 2 * turn, tokens)]
    status = ("success", "error", "timeout")[row % 3]
    call = {"code": "print(1)", "malformed": False, "status": status, "stdout": "1\n", "stderr": "", "value": None}
    note = {"programs": 1, "boxed": False, "fakes": [], "generate_s": 0.5, "tool_s": 0.2}
    return {
        "step": step,
        "uid": f"{step}-{row // 8}",
        "sample": row % 8,
        "index": row // 8,
        "data_source": ("aime", "math")[row % 2],
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


def make_run(folder: Path, trajectories: int, steps: int, tokens: int) -> tuple[Path, Path]:
    """(the run's folder, the same trajectories as JSON lines)"""
    random = np.random.default_rng(0)
    (folder / "model").mkdir(parents=True)
    build_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    lines = folder / "trajectories.jsonl"
    with lines.open("w") as file:
        for step in range(1, steps + 1):
            records = [make_record(step, row, tokens, random) for row in range(trajectories // steps)]
            write_step(folder / "rl" / "trajectories", step, records)
            for record in records:
                plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in record.items()}
                file.write(json.dumps(plain) + "\n")
    return folder, lines


def read_lines(path: Path) -> dict:
    """The list's columns from JSON lines."""
    names = ("step", "uid", "sample", "data_source", "index", "score", "acc", "turns", "finish")
    columns: dict[str, list] = {name: [] for name in names}
    with path.open() as file:
        for line in file:
            record = json.loads(line)
            for name in names:
                columns[name].append(record[name])
    return columns


def seconds(work, repeats: int) -> tuple[list[float], float]:
    """(seconds of every run, least processor seconds of one)"""
    times, processor = [], []
    for _ in range(repeats):
        clocks = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - clocks[0])
        processor.append(time.process_time() - clocks[1])
    return times, min(processor)


def open_run(run: Path) -> Source:
    """What `retool view` does before it listens."""
    source = Source(run)
    source.index()
    return source


def one_more(source: Source, tokens: int) -> None:
    """The next list once a running training has written another step."""
    random = np.random.default_rng(1)
    step = 1 + max(source.index()["step"])
    write_step(source.folder, step, [make_record(step, row, tokens, random) for row in range(8)])


async def paint(source: Source, chromium: str, deadline_s: float) -> tuple[float, str]:
    """(seconds from the page's request to its first painted row, what the page says that it lists)"""
    app, painted = application(source), asyncio.get_running_loop().create_future()

    async def report(request: web.Request) -> web.Response:
        if not painted.done():
            painted.set_result((float(request.query["ms"]) / 1000, request.query["count"]))
        return web.Response()

    @web.middleware
    async def add_report(request: web.Request, handler) -> web.StreamResponse:
        response = await handler(request)
        if request.path == "/":
            response.body = gzip.compress(gzip.decompress(response.body).replace(b"</body>", REPORT.encode()), 1)
        return response

    app.router.add_get("/painted", report)
    app.middlewares.append(add_report)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
        ]
        browser = await asyncio.create_subprocess_exec(
            chromium, *flags, address, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            return await asyncio.wait_for(painted, deadline_s)
        finally:
            browser.terminate()
            await browser.wait()
            await runner.cleanup()


def rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=120, help="of a response (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--deadline", type=float, default=120, help="seconds for the browser (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=provenance.RESULTS / "view.json")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch:
        run, lines = make_run(Path(scratch) / "run", args.trajectories, args.steps, args.tokens)
        head = provenance.made(PACKAGES)
        index_s, index_cpu_s = seconds(lambda: open_run(run), args.repeats)
        lines_s, lines_cpu_s = seconds(lambda: read_lines(lines), args.repeats)
        source = open_run(run)
        few, _ = make_run(Path(scratch) / "few", FEW, 1, args.tokens)
        paints, few_paints = [], []
        for _ in range(args.repeats if chromium else 0):
            paints.append(asyncio.run(paint(source, chromium, args.deadline)))
            few_paints.append(asyncio.run(paint(open_run(few), chromium, args.deadline)))
        one_more(source, args.tokens)
        later_s, _ = seconds(lambda: page(index=source.index()), 1)
    painted_s, few_painted_s = [value for value, _ in paints], [value for value, _ in few_paints]
    median = statistics.median
    shown = f"{args.trajectories:,} trajectories in {args.steps} steps"
    print(f"load {head['machine']['load']} on {os.cpu_count()} cores; median and worst of {args.repeats}")
    print(f"index of {shown}: {median(index_s):.3f} s, {max(index_s):.3f} s; {index_cpu_s:.3f} processor seconds")
    print(f"the same as JSON lines: {median(lines_s):.3f} s; {lines_cpu_s / index_cpu_s:.0f} x the processor seconds")
    print(f"the next list, one step later: {later_s[0]:.3f} s")
    if paints:
        print(f"request to first painted row: {median(painted_s):.3f} s, {max(painted_s):.3f} s ({paints[0][1]})")
        print(f"the same page with {FEW} trajectories: {median(few_painted_s):.3f} s, {max(few_painted_s):.3f} s")
    else:
        print("no Chromium on this machine: the page was not measured")
    result = {
        "trajectories": args.trajectories,
        "steps": args.steps,
        "tokens": args.tokens,
        "index_s": rounded(index_s),
        "index_processor_s": round(index_cpu_s, 4),
        "json_lines_s": rounded(lines_s),
        "ratio_of_processor_s": round(lines_cpu_s / index_cpu_s, 1),
        "next_list_s": rounded(later_s),
        "painted_s": rounded(painted_s),
        f"painted_with_{FEW}_s": rounded(few_painted_s),
    }
    provenance.write(args.output, head, result)


if __name__ == "__main__":
    main()
