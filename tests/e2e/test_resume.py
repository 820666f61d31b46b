"""kill -9 in the middle of RL: the next start goes on from the last whole checkpoint as if nothing had happened."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e_runs import COMMAND, SMALL, metrics_of, succeed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

# The reward grows worse with every token above 10, so that even this untrained policy's groups have advantages and the
# optimizer has a state to lose.
MIXED_REWARDS = ("recipe.overlong_buffer=150", "data.rl.steps=4", "data.rl.save_every=2")
COMPARED = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean", "actor/entropy")


def stage_processes(runs: Path) -> list[int]:
    """Processes whose command line names this run: launcher, driver, and what they started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(runs) in command and "retool_mcore.train.rl" in command:
            found.append(int(entry.name))
    return found


def test_killed_in_the_middle_resumes_and_continues_alike(fork_of_cold_start, tmp_path):
    undisturbed_runs = fork_of_cold_start
    undisturbed = metrics_of(succeed("rl", undisturbed_runs, *MIXED_REWARDS) / "rl")
    assert sorted(undisturbed) == [1, 2, 3, 4]
    assert any(values["actor/grad_norm"] > 1e-3 for values in undisturbed.values())

    runs = tmp_path / "killed"
    (runs / "t").mkdir(parents=True)
    for part in ("data", "model", "sft"):
        (runs / "t" / part).symlink_to(undisturbed_runs / "t" / part)
    command = [COMMAND, "rl", "name=t", f"runs_dir={runs}", *SMALL, *MIXED_REWARDS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 900
    while 3 not in metrics_of(runs / "t/rl"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    victims = stage_processes(runs)
    assert victims
    for pid in (process.pid, *victims):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    # A save that was cut short leaves such a folder; it must neither be loaded nor stop the next start.
    half = runs / "t/rl/checkpoints/global_step_3/actor"
    half.mkdir(parents=True, exist_ok=True)
    (half / "half.pt").write_bytes(b"\0" * 100)
    (runs / "t/rl/checkpoints/latest_checkpointed_iteration.txt").write_text("3")

    resumed = metrics_of(succeed("rl", runs, *MIXED_REWARDS) / "rl")
    assert "RL starts from global_step_2" in (runs / "t/rl/log.txt").read_text()
    assert sorted(resumed) == [1, 2, 3, 4]
    for step in (3, 4):
        for name in COMPARED:
            assert resumed[step][name] == pytest.approx(undisturbed[step][name], rel=1e-4, abs=1e-6), (step, name)
