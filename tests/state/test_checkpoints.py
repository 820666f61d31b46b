"""Whole, last, best and rotated checkpoints, in small folders; killed at each point of their making."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retool_mcore.state import checkpoints
from retool_mcore.state.checkpoints import best, complete, latest, repair, rotate, step_of

LOSS = {"keep_best": "val/loss", "best_is": "lowest"}
# How a checkpoint comes to be, as a program that is killed after its Nth line.
MAKING = (
    "(c / 'model/huggingface').mkdir(parents=True)",
    "(c / 'model/huggingface/model.safetensors').write_bytes(b'0' * 9)",
    "(c.parent / 'latest_checkpointed_iteration.txt').write_text('3')",
    "(c / 'optimizer/dist_ckpt').mkdir(parents=True)",
    "checkpoints.mark_complete(c)",
)


def save(stage_dir: Path, *steps: int) -> None:
    for step in steps:
        folder = stage_dir / f"checkpoints/global_step_{step}"
        (folder / "model/huggingface").mkdir(parents=True)
        checkpoints.mark_complete(folder)


def log(stage_dir: Path, attempt: int, values: dict[int, float]) -> None:
    (stage_dir / "metrics").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": {"val/loss": value}}) for step, value in values.items()]
    (stage_dir / f"metrics/attempt_{attempt:03d}.jsonl").write_text("".join(line + "\n" for line in lines))


def steps(stage_dir: Path) -> list[int]:
    """Every checkpoint folder there is, whole or not."""
    return sorted(step_of(path) for path in (stage_dir / "checkpoints").glob("global_step_*"))


def killed_after(lines: list[str], stage_dir: Path, preamble: str = "") -> None:
    """Run the lines in a process that kills itself after the last."""
    head = f"import os, signal\nfrom pathlib import Path\nfrom retool_mcore.state import checkpoints\n{preamble}"
    code = "\n".join([head, f"s = Path({str(stage_dir)!r})", "c = s / 'checkpoints/global_step_3'", *lines])
    done = subprocess.run([sys.executable, "-c", f"{code}\nos.kill(os.getpid(), signal.SIGKILL)"])
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", range(1, len(MAKING) + 1))
def test_killed_while_saving(tmp_path, point):
    save(tmp_path, 1, 2)
    killed_after(list(MAKING[:point]), tmp_path)
    last = 3 if point == len(MAKING) else 2
    root = tmp_path / "checkpoints"
    assert step_of(latest(root)) == last
    assert checkpoints.unfinished(root) == (None if last == 3 else root / "global_step_3")
    assert step_of(repair(root)) == last
    assert steps(tmp_path) == [1, 2, 3][:last] and (root / checkpoints.TRACKER).read_text() == str(last)


@pytest.mark.parametrize("function", ["os.unlink", "os.rmdir"])
def test_killed_while_rotating(tmp_path, function):
    save(tmp_path, 1, 2, 3)
    # At the removal of the first mark and, half-way, of the first folder.
    patch = f"def die(*_, **__):\n    os.kill(os.getpid(), signal.SIGKILL)\n{function} = die\n"
    killed_after(["checkpoints.rotate(s, keep_last=1)"], tmp_path, patch)
    root = tmp_path / "checkpoints"
    assert [step_of(path) for path in complete(root)] == ([1, 2, 3] if function == "os.unlink" else [2, 3])
    assert step_of(repair(root)) == 3
    rotate(tmp_path, keep_last=1)
    assert steps(tmp_path) == [3]


def test_a_whole_checkpoint_is_told_with_its_size_and_what_the_step_waited(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "checkpoints/global_step_3"
    (folder / "model/huggingface").mkdir(parents=True)
    (folder / "model/huggingface/model.safetensors").write_bytes(b"w" * 5000)
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: 18.0)
    found = checkpoints.declare_whole(folder, started=10.0, written=12.0)
    assert found == {"checkpoint/pause_s": 2.0, "checkpoint/bytes": 5000.0, "checkpoint/complete_s": 8.0}
    assert latest(folder.parent) == folder and "the step waited 2.0 s" in capsys.readouterr().out
    assert checkpoints.declare_whole(folder, started=10.0)["checkpoint/pause_s"] == 8.0


def test_without_a_whole_checkpoint_the_tracker_goes(tmp_path):
    (tmp_path / "global_step_5/model").mkdir(parents=True)
    (tmp_path / "global_step_5_of_mine").mkdir()
    (tmp_path / checkpoints.TRACKER).write_text("5")
    assert repair(tmp_path) is None and os.listdir(tmp_path) == ["global_step_5_of_mine"]


def test_the_last_stay_and_one_in_the_making(tmp_path):
    save(tmp_path, 8, 9, 10, 11)
    (tmp_path / "checkpoints/global_step_12/model/huggingface").mkdir(parents=True)
    rotate(tmp_path, keep_last=2)
    assert steps(tmp_path) == [10, 11, 12]


def test_the_best_stays_until_a_better_one(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: float("nan"), 5: 1.0, 6: 0.5}
    kept, found = [], []
    for step in losses:
        save(tmp_path, step)
        log(tmp_path, 1, {s: value for s, value in losses.items() if s < step})  # its own comes after it is saved
        rotate(tmp_path, keep_last=1, **LOSS)
        log(tmp_path, 1, {s: value for s, value in losses.items() if s <= step})
        rotate(tmp_path, keep_last=1, **LOSS)
        kept.append(steps(tmp_path))
        found.append(best(tmp_path / "checkpoints")["step"])
    assert kept == [[1], [2], [2, 3], [2, 4], [5], [6]]  # of equal values the later one
    assert found == [1, 2, 2, 2, 5, 6]
    assert best(tmp_path / "checkpoints") == {"metric": "val/loss", "value": 0.5, "step": 6}
    assert os.readlink(tmp_path / "policy_best") == "checkpoints/global_step_6/model/huggingface"


def test_highest_is_the_other_way(tmp_path):
    save(tmp_path, 1, 2, 3)
    log(tmp_path, 1, {1: 0.1, 2: 0.9, 3: 0.5})
    rotate(tmp_path, keep_last=1, keep_best="loss", best_is="highest")
    assert steps(tmp_path) == [2, 3]


def test_the_recorded_best_outlives_its_metrics_file_but_not_its_checkpoint(tmp_path):
    save(tmp_path, 1, 2)
    log(tmp_path, 1, {1: 0.1, 2: 0.2})
    rotate(tmp_path, keep_last=1, **LOSS)
    (tmp_path / "metrics/attempt_001.jsonl").unlink()
    save(tmp_path, 3)
    log(tmp_path, 2, {3: 0.3})
    rotate(tmp_path, keep_last=1, **LOSS)
    assert steps(tmp_path) == [1, 3]
    (tmp_path / "checkpoints/global_step_1" / checkpoints.MARK).unlink()
    repair(tmp_path / "checkpoints")
    assert best(tmp_path / "checkpoints") is None
    rotate(tmp_path, keep_last=1, **LOSS)
    assert best(tmp_path / "checkpoints")["step"] == 3


def test_a_metric_that_nothing_logs_keeps_no_best(tmp_path):
    save(tmp_path, 1, 2)
    log(tmp_path, 1, {1: 0.1, 2: 0.2})
    rotate(tmp_path, keep_last=1, keep_best="val/los", best_is="lowest")
    assert steps(tmp_path) == [2] and best(tmp_path / "checkpoints") is None
    assert not (tmp_path / "policy_best").is_symlink()


def test_policies(tmp_path):
    save(tmp_path, 1, 20)
    log(tmp_path, 1, {1: 0.1, 20: 0.2})
    rotate(tmp_path, keep_last=1, **LOSS)
    assert checkpoints.policy_step(checkpoints.link_policy(tmp_path)) == 20
    assert checkpoints.policy_step(tmp_path / "policy_best") == 1
    assert checkpoints.policy_step(tmp_path) == 0


def test_the_policy_is_the_newest_whole_checkpoint_at_every_moment(tmp_path):
    for step in (2, 4, 5):
        save(tmp_path, step)
        assert checkpoints.policy_step(tmp_path / "policy") == step
        rotate(tmp_path, keep_last=1)
        assert (tmp_path / "policy").is_dir() and checkpoints.policy_step(tmp_path / "policy") == step
    (tmp_path / "checkpoints/global_step_6/model/huggingface").mkdir(parents=True)  # in the making
    rotate(tmp_path, keep_last=1)
    assert checkpoints.policy_step(tmp_path / "policy") == 5
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("mend", [lambda s: repair(s / "checkpoints"), lambda s: rotate(s, keep_last=1)])
def test_a_link_that_a_kill_left_behind_moves_before_its_checkpoint_goes(tmp_path, mend):
    save(tmp_path, 1, 2)
    checkpoints._link(tmp_path / "policy", checkpoints.policy_folder(tmp_path / "checkpoints/global_step_1"))
    mend(tmp_path)
    assert checkpoints.policy_step(tmp_path / "policy") == 2 and (tmp_path / "policy").is_dir()


def test_marking_in_a_thread_and_rotating_leave_the_newest(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with ThreadPoolExecutor(1) as pool:
        for step in range(1, 30):
            marked = pool.submit(save, tmp_path, step)
            rotate(tmp_path, keep_last=1)
            marked.result()
            assert checkpoints.policy_step(tmp_path / "policy") == step


def test_a_stage_that_has_not_ended_is_half_trained(tmp_path):
    save(tmp_path / "sft", 3)
    link = tmp_path / "sft/policy"
    assert checkpoints.half_trained(link) == ("sft", 3)
    assert checkpoints.half_trained(link.resolve()) is None  # named itself, it is asked for
    (tmp_path / "sft/COMPLETE").touch()
    assert checkpoints.half_trained(link) is None
    shutil.copytree(link, tmp_path / "copy/policy")
    assert checkpoints.half_trained(tmp_path / "copy/policy") is None


def test_rl_that_saves_nothing_has_no_policy(tmp_path):
    """train.save_every=-1."""
    assert checkpoints.link_policy(tmp_path) is None
    assert not (tmp_path / "policy").is_symlink()
