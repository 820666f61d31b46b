"""The cold-start pipeline against a real vLLM server, and SFT on what it writes.

The server's model is tiny and random: it carries the transport and rewrites nothing. So the rows that pass are recorded
rewrites: a forwarder sends every request on to vLLM, waits for its reply, and puts the recorded text in it.
"""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from e2e_runs import COMMAND, metrics_of, retool

from retool_mcore.data.tiny_model import make_tiny_model
from tests.support.coldstart.model_double import recorded_replies, serving
from tests.support.coldstart.recorded_rewrites import KINDS, NEAR_MISSES, recorded, write_source

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]
START_S = 900
CONCURRENCY = 8
LABELS = KINDS | NEAR_MISSES
ROWS = recorded(296, kinds=tuple(LABELS))
# As much of it as the tiny model's 1,024 positions hold, at a token a letter.
INSTRUCTION = "Rewrite with <code> and <interpreter>."


class Server:
    """`retool coldstart serve` at a free port; `url` ends in /v1."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.root = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.url = f"{self.root}/v1"
        self.log = folder / "server.log"
        model = make_tiny_model(folder / "model", 0)
        config = written(folder, self.url, folder / "none.jsonl")
        arguments = ["--max-model-len", "1024", "--enforce-eager", "--dtype", "float32"]
        command = [COMMAND, "coldstart", "serve", str(config), "--checkpoint", str(model), *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(1)
        raise AssertionError(self.log.read_text()[-4000:])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.root + path, timeout=10) as reply:
            return reply.read().decode()

    def finished(self) -> int:
        """Requests that vLLM itself counts as finished."""
        found = re.findall(r"^vllm:request_success_total\{[^}]*\} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(int(float(number)) for number in found)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.wait()
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def written(folder: Path, url: str, source: Path, judge: bool = False) -> Path:
    """A configuration of a run into folder/out; JSON is YAML."""
    model = {"url": url, "name": "tiny", "max_tokens": 16, "concurrency": CONCURRENCY}
    config = {
        "output": str(folder / "out"),
        "source": {"path": str(source), "columns": {n: n for n in ("problem", "reasoning", "answer")}},
        "rewrite": {"model": model, "instruction": INSTRUCTION},
    }
    path = folder / "coldstart.json"
    path.write_text(json.dumps(config | ({"judge": {"model": model}} if judge else {})))
    return path


def account(folder: Path) -> tuple[dict, dict]:
    """(stages by name, calls by purpose) of a finished run, printed for docs/coldstart.md."""
    summary = json.loads((folder / "out/statistics.json").read_text())
    for stage in summary["stages"]:
        print(f"{stage['stage']:20} {stage['rows_in']:4} -> {stage['rows_out']:4}  {stage['drops'] or ''}")
    for purpose, used in summary["calls"].items():
        print(f"{purpose:20} {used}")
    return {stage["stage"]: stage for stage in summary["stages"]}, summary["calls"]


def test_replies_of_a_model_that_cannot_rewrite_are_all_counted(server, tmp_path):
    source = write_source(ROWS, tmp_path / "rows.jsonl")
    done = retool("coldstart", "run", str(written(tmp_path, server.url, source)), timeout_s=900)
    stages, calls = account(tmp_path)
    assert done.returncode == 2 and "no row is left" in done.stderr
    assert stages["rewrite"]["rows_in"] == calls["rewrite"]["calls"] == len(ROWS)
    assert calls["rewrite"]["tokens_out"] > 0
    judged = retool("coldstart", "run", str(written(tmp_path, server.url, source, judge=True)), timeout_s=900)
    stages, calls = account(tmp_path)
    assert judged.returncode == 2 and stages["judge verification"]["rows_out"] == 0
    assert calls["judge"]["calls"] == len(ROWS)


@pytest.fixture(scope="module")
def finished(server, tmp_path_factory):
    """The folder of a run through the forwarder, killed in the middle of its rewriting and started again."""
    folder = tmp_path_factory.mktemp("coldstart")
    source = write_source(ROWS, folder / "rows.jsonl")
    before = server.finished()
    with serving(recorded_replies(ROWS), server.url) as double:
        command = ["coldstart", "run", str(written(folder, double.url, source, judge=True))]
        double.failures = [503, 429, 503]
        with subprocess.Popen([COMMAND, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
            while sum(double.calls.values()) < len(ROWS) + 100:
                assert first.poll() is None
                time.sleep(0.01)
            first.send_signal(signal.SIGKILL)
        done = retool(*command, timeout_s=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        repeated = [number for number in double.calls.values() if number > 1]
        asked, counted = sum(double.calls.values()), server.finished() - before
    print(f"{asked} requests, {len(repeated)} of them repeated; vLLM counts {counted}")
    # What was in flight at the kill is asked for again, and nothing else.
    assert len(repeated) <= CONCURRENCY and set(repeated) <= {2}
    assert counted == asked
    return folder


def test_the_whole_pipeline_keeps_the_good_rewrites_alone(finished):
    stages, calls = account(finished)
    dropped = {record["row"]: record["stage"] for record in map(json.loads, (finished / "out/dropped.jsonl").open())}
    assert {(row.kind, dropped.get(number)) for number, row in enumerate(ROWS)} == set(LABELS.items())
    for purpose, stage in (("judge", "judge verification"), ("rewrite", "rewrite")):
        assert calls[purpose]["calls"] == stages[stage]["rows_in"]
    assert calls["judge"]["retries"] == 3


@pytest.mark.parametrize("name", ["text", "hermes"])
def test_sft_trains_on_what_it_wrote(finished, tmp_path, name):
    out = finished / "out"
    done = retool(
        "sft",
        "data=math",
        f"data.sft_train_files={out}/{name}/train.parquet",
        f"data.sft_validation_files={out}/{name}/validation.parquet",
        *(f"rollout.format={name}", f"data.prompt={'retool' if name == 'text' else name}"),
        *(f"init_from={out}/tiny", "name=t", f"runs_dir={tmp_path}"),
        *("train.steps=2", "train.batch=4", "train.warmup_steps=1", "train.max_length=1024", "train.eval_every=2"),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    losses = {step: values["train/loss"] for step, values in metrics_of(tmp_path / "t/sft").items()}
    print(name, losses)
    assert sorted(losses) == [1, 2] and all(0 < loss < 20 for loss in losses.values())
