"""Checkpoints written beside the next steps: Megatron's real queue and its forked writers, one rank, no model."""

import multiprocessing
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from safetensors.torch import load_file

from retool_mcore.train import async_save
from retool_mcore.train.async_save import AsyncCheckpointManager, in_writer, one_after_another, staged, weights_request

DEADLINE_S = 60


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


def wait_for(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gated(write, gate: Path):
    """`write`, begun when `gate` exists."""

    def wait_and_write(*args):
        wait_for(gate.exists)
        write(*args)

    return wait_and_write


def write_buckets(rank, buckets, results):
    for path, _, (_, tensors) in buckets:
        torch.save([tensor for _, tensor in tensors], path)


def shard_request(tensor: torch.Tensor, path: Path, write=write_buckets) -> AsyncRequest:
    """As Megatron's FileSystemWriterAsync makes it."""
    return AsyncRequest(write, [0, [(path, "key", ([], [("item", tensor)]))], None], [], preload_fn=lambda: None)


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared memory"])
def test_shards_hold_the_state_of_the_save_whatever_the_next_step_does(tmp_path, shared):
    tensor = torch.arange(4.0)
    if shared:
        tensor.share_memory_()
    request = shard_request(tensor, tmp_path / "shard", gated(write_buckets, tmp_path / "gate"))
    queue = AsyncCallsQueue()
    queue.schedule_async_request(one_after_another([staged(request)]))
    tensor.fill_(7)
    assert queue.maybe_finalize_async_calls(blocking=False) == [] and not (tmp_path / "shard").exists()
    (tmp_path / "gate").touch()
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    assert torch.load(tmp_path / "shard")[0].tolist() == [0, 1, 2, 3]


def test_one_process_writes_in_order_and_the_finalisers_keep_theirs(tmp_path):
    def note(name):
        with open(tmp_path / "log", "a") as file:
            file.write(f"{name} {os.getpid()}\n")

    finalised = []
    requests = [AsyncRequest(note, (name,), [partial(finalised.append, name)]) for name in "ab"]
    requests.insert(1, AsyncRequest(None, (), [partial(finalised.append, "nothing to write")]))
    queue = AsyncCallsQueue()
    queue.schedule_async_request(one_after_another(requests))
    queue.maybe_finalize_async_calls(blocking=True)
    (first, pid), (second, same) = (line.split() for line in (tmp_path / "log").read_text().splitlines())
    assert (first, second) == ("a", "b") and pid == same != str(os.getpid())
    assert finalised == ["a", "nothing to write", "b"]


def test_a_rank_with_nothing_to_write_starts_no_process():
    assert one_after_another([weights_request({}, Path("x"))]).async_fn is None
    queue = AsyncCallsQueue()
    queue.schedule_async_request(one_after_another([weights_request({}, Path("x"))]))
    assert queue.maybe_finalize_async_calls(blocking=False) == [0]


def fail(*_):
    raise OSError(28, "No space left on device")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("write", "words"), [(fail, "No space left on device"), (die, "the writing process died")])
def test_weights_that_could_not_be_written_are_an_error(tmp_path, monkeypatch, write, words):
    monkeypatch.setattr(async_save, "save_torch_state_dict", write)
    queue = AsyncCallsQueue()
    queue.schedule_async_request(one_after_another([weights_request({"w": torch.zeros(2)}, tmp_path)]))
    with pytest.raises(RuntimeError, match=words):
        queue.maybe_finalize_async_calls(blocking=True)


def make_manager(monkeypatch, weights: dict) -> AsyncCheckpointManager:
    """A manager of rank 0 with a bridge that gathers `weights`; the rest of verl's engine is not there."""
    manager = object.__new__(AsyncCheckpointManager)
    AsyncCheckpointManager.take_over(SimpleNamespace(checkpoint_mananager=manager))
    manager.rank, manager.model, manager.peft_cls, manager.vanilla_bridge = 0, None, None, True
    manager.bridge = SimpleNamespace(export_weights=lambda model: iter(weights.items()))
    manager.checkpoint_config = SimpleNamespace(async_save=True)
    monkeypatch.setattr(manager, "_write_checkpoint_manifest", lambda *_: None, raising=False)
    return manager


def test_a_step_is_reported_once_and_only_when_its_last_part_is_written(tmp_path, monkeypatch):
    weights = {"a": torch.arange(3.0), "tied": torch.arange(6.0).view(2, 3).T}
    manager = make_manager(monkeypatch, weights)
    manager._save_model_as_hf_via_bridge(str(tmp_path))
    shard = shard_request(torch.zeros(1), tmp_path / "shard", gated(write_buckets, tmp_path / "gate"))
    manager._dispatch_finalize(
        [shard], partial(manager._finalize_save, local_path=tmp_path, global_step=5, saved_any_dist_ckpt=True)
    )
    for weight in weights.values():
        weight.zero_()
    wait_for((tmp_path / "model.safetensors").exists)
    assert manager.finish(blocking=False) == []
    (tmp_path / "gate").touch()
    assert manager.finish(blocking=True) == [5] and (tmp_path / "shard").exists()
    assert manager.finish(blocking=True) == []
    found = load_file(tmp_path / "model.safetensors")
    assert found["a"].tolist() == [0, 1, 2] and found["tied"].tolist() == [[0, 3], [1, 4], [2, 5]]


def fork_and_wait(report) -> None:
    """As Megatron's writer, which has a process for each file."""
    pid = os.fork()
    if pid == 0:
        time.sleep(10 * DEADLINE_S)
        os._exit(0)
    report.send((os.getpid(), pid))
    os.waitpid(pid, 0)


def rank(port: int, report) -> None:
    """A process with a connection to a peer and a writer that does not end."""
    peer = socket.create_connection(("127.0.0.1", port))
    pid = os.fork()
    if pid == 0:
        in_writer([(fork_and_wait, (report,))])
        os._exit(0)
    os.waitpid(pid, 0)
    peer.close()


def ended(process: Path) -> bool:
    try:
        return (process / "stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_a_writer_holds_no_connection_and_dies_with_its_rank():
    here, there = multiprocessing.Pipe(duplex=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = multiprocessing.get_context("fork").Process(target=rank, args=(server.getsockname()[1], there))
        process.start()
        peer, _ = server.accept()
        assert here.poll(DEADLINE_S)
        writers = [Path(f"/proc/{pid}") for pid in here.recv()]
        open_files = [os.readlink(entry) for writer in writers for entry in (writer / "fd").iterdir()]
        assert open_files and not [name for name in open_files if name.startswith("socket:")]
        process.kill()
        peer.settimeout(DEADLINE_S)
        assert peer.recv(1) == b""
        process.join()
        wait_for(lambda: all(map(ended, writers)))
        peer.close()
