"""kill -9 before a save of RL is declared whole and in the middle of the next step's generation: the next start goes on
from the last whole checkpoint as if nothing had happened, and generates nothing that was finished."""

import os
import signal
import time
from pathlib import Path

import pytest
from e2e_runs import RESUMABLE, SMALL, metrics_of, started, succeed

from retool_mcore.metrics.records import read_step
from retool_mcore.rollout.unfinished import Unfinished
from retool_mcore.state import checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

COMPARED = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean", "actor/entropy")
COMPARED += ("val/accuracy", "val/accuracy_se")


def stage_processes(runs: Path) -> list[int]:
    """The process that trains, and the one that stands for it where it is forked (backends/forked_python.py)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(runs) in command and "retool_mcore.train.rl" in command:
            found.append(int(entry.name))
    return found


def finished(stage_dir: Path, step: int) -> int:
    """Trajectories of a step that are on the disk for the next start."""
    return sum(len(Unfinished(folder).found) for folder in stage_dir.glob(f"unfinished/step_{step:06d}-*"))


def wait_for(condition, process) -> None:
    deadline = time.monotonic() + 900
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_while_saving_resumes_and_continues_alike(trained, tmp_path):
    undisturbed_runs = trained
    undisturbed = metrics_of(trained / "t/rl")
    assert sorted(undisturbed) == [1, 2, 3, 4]
    assert any(values["actor/grad_norm"] > 1e-3 for values in undisturbed.values())
    saves = [values for values in undisturbed.values() if "checkpoint/bytes" in values]
    assert saves and all(save["checkpoint/pause_s"] <= save["checkpoint/complete_s"] for save in saves)

    runs = tmp_path / "killed"
    (runs / "t").mkdir(parents=True)
    for part in ("data", "model", "sft"):
        (runs / "t" / part).symlink_to(undisturbed_runs / "t" / part)
    root, log = runs / "t/rl/checkpoints", runs / "t/rl/log.txt"
    with started("rl", runs, *SMALL, *RESUMABLE) as process:
        wait_for(lambda: log.exists() and "RL starts" in log.read_text(), process)  # it has cleaned up
        # Where files.replacing writes COMPLETE first: opening it for writing waits for a reader, for ever.
        (root / "global_step_2").mkdir(parents=True)
        for trainer in stage_processes(runs):
            os.mkfifo(root / f"global_step_2/.COMPLETE.{trainer}.part")
        wait_for(lambda: 2 in metrics_of(runs / "t/rl"), process)  # the step is over, its save is not whole
        wait_for(lambda: finished(runs / "t/rl", 3) > 0, process)
        assert checkpoints.step_of(checkpoints.latest(root)) == 1
        assert checkpoints.unfinished(root) == root / "global_step_2" and (root / "global_step_2/prompts.json").exists()
        victims = stage_processes(runs)
        assert victims
        for pid in (process.pid, *victims):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        (root / "latest_checkpointed_iteration.txt").write_text("2")  # as verl leaves it when it is killed in between
        os.truncate(root / "global_step_2/actor/optimizer/dist_ckpt/__0_0.distcp", 100)  # as in the middle of a write

    kept = {step: finished(runs / "t/rl", step) for step in (1, 2, 3, 4)}  # now that the last worker is gone
    assert kept[1] == kept[4] == 0 and kept[2] == 16 and kept[3] > 0  # the checkpoint covers step 1
    resumed = metrics_of(succeed("rl", runs, *RESUMABLE) / "rl")
    assert "RL starts from global_step_1" in log.read_text()
    assert sorted(resumed) == [1, 2, 3, 4]
    for step in (2, 3, 4):
        for name in COMPARED:
            assert resumed[step][name] == pytest.approx(undisturbed[step][name], rel=1e-4, abs=1e-6), (step, name)
        assert resumed[step]["val/failed"] == 0
    for step in (2, 3, 4):  # what was finished is what was trained on, and nothing of it was generated twice
        records = read_step(runs / f"t/rl/trajectories/step_{step:06d}.parquet")
        taken = sum(record["taken_over"] for record in records)
        assert resumed[step]["rollout/taken_over"] == taken == kept[step] and len(records) == 16
        assert len({(record["index"], record["sample"]) for record in records}) == 16
    assert "step 2: 16 of 16 trajectories taken over from the attempt before" in log.read_text()
    assert not any((runs / "t/rl/unfinished").iterdir())
    best = checkpoints.best(root)
    assert checkpoints.unfinished(root) is None and best["metric"] == "val/accuracy"
    theirs = checkpoints.best(undisturbed_runs / "t/rl/checkpoints")
    assert best["step"] == theirs["step"] and best["value"] == pytest.approx(theirs["value"], rel=1e-6)
