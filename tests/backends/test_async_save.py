"""Checkpoints written beside the next steps: verl's manager with a save of its own in the place of Megatron's, and the
real files, threads and locks."""

import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from verl.trainer.config import CheckpointConfig
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

from retool_mcore.backends.verl.async_save import Save, StagedCheckpointManager
from retool_mcore.state import checkpoints, staging

DEADLINE_S = 60
FILES = {"model/huggingface/model.safetensors": b"w" * 5000, "optimizer/dist_ckpt/__0_0.distcp": b"o" * 70000}


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture
def memory(tmp_path, monkeypatch):
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(staging, "ROOT", folder)
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "checkpoints/global_step_4"


def save_files(manager, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
    for name, content in FILES.items():
        path = Path(local_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_manager(monkeypatch, async_save: bool, rank: int = 0) -> StagedCheckpointManager:
    monkeypatch.setattr(MegatronCheckpointManager, "save_checkpoint", save_files)
    manager = object.__new__(MegatronCheckpointManager)
    manager.checkpoint_config, manager.rank = CheckpointConfig(async_save=async_save), rank
    StagedCheckpointManager.take_over(SimpleNamespace(checkpoint_mananager=manager))
    assert not manager.checkpoint_config.async_save  # Megatron's own would schedule writes that nobody finishes
    return manager


def found(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_save_returns_before_its_files_are_on_the_disk_and_is_whole_after(memory, target, monkeypatch):
    manager, gate, move = make_manager(monkeypatch, async_save=True), memory.parent / "gate", staging.move
    monkeypatch.setattr(staging, "move", lambda *folders: (wait_for(gate.exists), move(*folders))[1])
    manager.save_checkpoint(str(target), None, 4)
    target.mkdir(parents=True)
    (target / "data.pt").write_bytes(b"d")  # the trainer's own
    save = Save(target, time.monotonic(), parts=1)
    manager.finish(blocking=False)
    assert save.ended(blocking=False) is None and checkpoints.latest(target.parent) is None
    assert found(target).keys() == {"data.pt"} and len(found(memory)) == len(FILES)
    gate.touch()
    metrics = save.ended(blocking=True)  # without another call of the ranks: a step may take an hour
    manager.finish(blocking=True)
    assert checkpoints.latest(target.parent) == target and not list(memory.iterdir())
    assert found(target) == FILES | {"data.pt": b"d", checkpoints.MARK: b""}
    assert metrics["checkpoint/bytes"] == 75001
    assert metrics["checkpoint/pause_s"] <= metrics["checkpoint/complete_s"]


def test_a_synchronous_save_goes_to_the_disk_at_once(memory, target, monkeypatch):
    manager = make_manager(monkeypatch, async_save=False)
    manager.save_checkpoint(str(target), None, 4)
    assert found(target) == FILES and not list(memory.iterdir())
    metrics = Save(target, time.monotonic(), parts=0).ended(blocking=True)
    assert checkpoints.latest(target.parent) == target
    assert metrics["checkpoint/pause_s"] == pytest.approx(metrics["checkpoint/complete_s"], abs=0.01)


def test_it_is_not_whole_before_it_may_be_and_the_wait_is_no_pause(target):
    target.mkdir(parents=True)
    (target / "model/huggingface").mkdir(parents=True)
    allowed = threading.Event()
    save = Save(target, time.monotonic(), parts=0, until=allowed.wait)
    time.sleep(0.3)
    assert save.ended(blocking=False) is None and checkpoints.latest(target.parent) is None
    allowed.set()
    metrics = save.ended(blocking=True)
    assert checkpoints.latest(target.parent) == target
    assert metrics["checkpoint/pause_s"] < 0.3 <= metrics["checkpoint/complete_s"]


def test_it_is_not_whole_before_every_rank_has_written(memory, target, monkeypatch):
    manager = make_manager(monkeypatch, async_save=True, rank=1)
    manager.save_checkpoint(str(target), None, 4)
    manager.finish(blocking=True)
    assert found(target) == FILES | {".written-1": b"75000"}
    save = Save(target, time.monotonic(), parts=2)
    time.sleep(0.5)
    assert save.ended(blocking=False) is None and checkpoints.latest(target.parent) is None
    (target / "critic").mkdir()
    (target / "critic/.written-1").write_text("0")  # the critic's ranks count too
    assert save.ended(blocking=True) and checkpoints.latest(target.parent) == target
    assert sorted(found(target)) == sorted([*FILES, checkpoints.MARK])


@pytest.mark.parametrize("blocking", [True, False], ids=["waited for", "polled"])
def test_a_disk_that_is_full_is_told_and_leaves_no_memory_behind(memory, target, monkeypatch, blocking):
    manager = make_manager(monkeypatch, async_save=True)
    target.parent.mkdir()
    target.symlink_to("/dev/full")  # every write fails, as on a full disk
    monkeypatch.setattr(staging, "move", lambda source, target: target.write_text("x"))
    manager.save_checkpoint(str(target), None, 4)
    wait_for(lambda: not manager.writer.is_alive())
    with pytest.raises(RuntimeError, match=r"global_step_4 could not be written: .*No space left on device"):
        manager.finish(blocking)
    assert not list(memory.iterdir()) and checkpoints.latest(target.parent) is None


def test_all_ranks_of_a_node_share_the_files_and_none_is_left_or_written_twice(tmp_path):
    source, target = tmp_path / "memory", tmp_path / "disk"
    contents = {f"optimizer/dist_ckpt/__{rank}_{part}.distcp": os.urandom(3000) for rank in range(8) for part in (0, 1)}
    for name, content in contents.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        moved = pool.starmap(staging.move, [(source, target)] * 4)
    assert sum(moved) == 16 * 3000 and found(target) == contents and not found(source)


def hold_and_wait(ready) -> None:
    folder, _ = staging.hold("a checkpoint")
    (folder / "shard").write_bytes(b"x")
    ready.send(str(folder))
    time.sleep(10 * DEADLINE_S)


def test_a_killed_ranks_memory_is_given_back_and_a_living_ones_is_not(memory):
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=hold_and_wait, args=(there,))
    process.start()
    assert here.poll(DEADLINE_S)
    folder = Path(here.recv())
    staging.sweep()
    same, lock = staging.hold("a checkpoint")
    assert same == folder and (folder / "shard").exists()
    os.close(lock)
    process.kill()
    process.join()
    other, lock = staging.hold("another checkpoint")
    assert list(memory.iterdir()) == [other]
    os.close(lock)
    staging.sweep()
    assert not list(memory.iterdir())
