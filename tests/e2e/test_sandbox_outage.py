"""The sandbox service is killed while RL generates: nothing of that is learnt, and a run that gets no other stops."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from e2e_runs import COMMAND, SMALL, metrics_of

from retool_mcore.metrics.records import read_step, step_files

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]
PATIENCE_S = 3


@contextmanager
def service(port=0):
    """(process, port) of `retool sandbox serve`."""
    command = [COMMAND, "sandbox", "serve", f"--port={port}", "--workers=4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = process.stdout.readline()
        assert said.startswith("sandbox service: http://"), said
        yield process, int(said.split()[2].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


@contextmanager
def training(runs, port, *overrides):
    box = ("sandbox=pool", f"sandbox.hosts=[http://127.0.0.1:{port}]", f"sandbox.patience_s={PATIENCE_S}")
    command = [COMMAND, "rl", "name=t", f"runs_dir={runs}", *SMALL, *box, "data.rl.save_every=1", *overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


def wait_for_step(stage_dir, step, process):
    deadline = time.monotonic() + 900
    while step not in metrics_of(stage_dir):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()[-3000:]
        time.sleep(0.02)


def test_a_service_that_is_killed_and_comes_back_teaches_nothing_meanwhile(fork_of_cold_start):
    stage_dir = fork_of_cold_start / "t/rl"
    steps = 6
    with service() as (first, port):
        kept_going = ("rollout.sandbox_errors=1.0", "recipe.filters.refill_limit=1000", f"data.rl.steps={steps}")
        with training(fork_of_cold_start, port, *kept_going) as process:
            wait_for_step(stage_dir, 1, process)
            first.kill()
            first.wait()
            time.sleep(4 * PATIENCE_S)
            with service(port):
                output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-3000:]
    metrics = metrics_of(stage_dir)
    assert sorted(metrics) == list(range(1, steps + 1))
    assert sum(values["filters/groups/sandbox_error"] for values in metrics.values()) > 0
    assert any(values["sandbox/error_share"] > 0 for values in metrics.values())
    for path in step_files(stage_dir / "trajectories").values():
        records = read_step(path)
        assert len(records) == 16
        assert not any(record["finish"] == "sandbox_error" for record in records)
        assert not any(call["status"] == "sandbox_error" for record in records for call in record["calls"])
    print({step: values["filters/groups/sandbox_error"] for step, values in metrics.items()}, file=sys.stderr)


def test_a_service_that_stays_dead_stops_the_run_in_one_sentence(fork_of_cold_start):
    stage_dir = fork_of_cold_start / "t/rl"
    with service() as (process, port), training(fork_of_cold_start, port, "data.rl.steps=1000") as run:
        wait_for_step(stage_dir, 1, run)
        process.kill()
        output, _ = run.communicate(timeout=300)
    assert run.returncode not in (0, None)
    last = output.strip().splitlines()[-1]
    print(last, file=sys.stderr)
    assert "the sandbox itself failed in" in last and "rollout.sandbox_errors=0.2" in last, output[-3000:]
    assert (
        "no sandbox service ran it within 3 s (" in last and "no host is known" not in last and "Traceback" not in last
    )
    for path in step_files(stage_dir / "trajectories").values():
        assert not any(record["finish"] == "sandbox_error" for record in read_step(path))
