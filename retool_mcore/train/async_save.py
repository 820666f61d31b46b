"""Checkpoints whose writes go on beside the next steps, by Megatron's own AsyncCallsQueue.

verl 0.9.1 schedules Megatron's asynchronous writes (`checkpoint.async_save`) but never finalises them, and writes the
Hugging Face weights while the step waits. `AsyncCheckpointManager` adds both: a step pays for the copies, forked
processes write them, and `finish`, which every rank calls at the same point between two steps, tells which checkpoints
became whole on all ranks.

What makes the forked copy sound: the writer reads only private pages of host memory, which a fork snapshots. Anything
else (device memory, pinned or shared pages, views of gathered buffers) is copied to such pages first.
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

from retool_mcore.processes import signal_at_parents_death
from retool_mcore.train.gpu_worker import GpuWatchingWorker


class AsyncCheckpointManager(MegatronCheckpointManager):
    """verl's manager with `checkpoint.async_save`; `whole` holds the steps that `finish` has still to report.

    Methods that are overridden: verl/utils/checkpoint/megatron_checkpoint_manager.py, release 0.9.1.
    """

    @classmethod
    def take_over(cls, engine) -> None:
        """Make the manager of verl's Megatron `engine`, which builds its own, one of this class."""
        engine.checkpoint_mananager.__class__ = cls
        engine.checkpoint_mananager.whole = []
        engine.checkpoint_mananager.weights = []
        engine.checkpoint_mananager.calls = AsyncCallsQueue()

    def finish(self, blocking: bool) -> list[int]:
        """The steps whose checkpoints became whole on all ranks since the last call. All ranks call it together.

        Args:
            blocking: wait for writes that are under way.

        Raises:
            CheckpointException, RuntimeError: a part could not be written.
        """
        self.calls.maybe_finalize_async_calls(blocking)
        found, self.whole = self.whole, []
        return found

    def save_checkpoint(self, *args, **kwargs):
        """Copy the state and schedule its writes. One save at a time: waits for the one before."""
        self.calls.maybe_finalize_async_calls(blocking=True)
        super().save_checkpoint(*args, **kwargs)

    def _save_model_as_hf_via_bridge(self, hf_ckpt_path):
        """Gather the weights (verl's are written here, too) and leave the writing to a request."""
        if self.peft_cls is not None:
            return super()._save_model_as_hf_via_bridge(hf_ckpt_path)
        export = self.bridge.export_weights if self.vanilla_bridge else self.bridge.export_hf_weights
        # Every rank takes part in the gathering, one keeps the result.
        copies = {name: host_copy(weight) for name, weight in export(self.model) if self.rank == 0}
        self.weights = [weights_request(copies, Path(hf_ckpt_path))]

    def _dispatch_finalize(self, async_requests, finalize_save_fn):
        requests, self.weights = [*self.weights, *map(staged, async_requests)], []
        request = one_after_another(requests)
        request.add_finalize_fn(finalize_save_fn)
        self.calls.schedule_async_request(request)

    def _finalize_save(self, *, local_path, global_step, saved_any_dist_ckpt, **_):
        # verl's would also write its tracker (SFT's to the wrong folder) and rotate, which train/checkpoints.py does.
        self._write_checkpoint_manifest(local_path, global_step, saved_any_dist_ckpt)
        self.whole.append(global_step)


class SavingWorker(GpuWatchingWorker):
    """verl's RL worker with AsyncCheckpointManager."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        if self.config.actor.checkpoint.async_save:
            AsyncCheckpointManager.take_over(self.actor.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_saves(self, blocking: bool) -> list[int]:
        """AsyncCheckpointManager.finish."""
        return self.actor.engine.checkpoint_mananager.finish(blocking)


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in private pages of host memory."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=False)
    return copy.copy_(tensor.detach())


def private(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself where a fork snapshots it, else a copy that it does."""
    return tensor if tensor.is_cpu and not tensor.is_pinned() and not tensor.is_shared() else host_copy(tensor)


def staged(request: AsyncRequest) -> AsyncRequest:
    """Megatron's write request with its tensors made `private`."""
    if request.async_fn is None:  # nothing to write on this rank
        return request
    rank, buckets, results = request.async_fn_args  # FileSystemWriterAsync.get_save_function_and_args
    buckets = [
        (path, key, (data, [(item, private(tensor)) for item, tensor in items])) for path, key, (data, items) in buckets
    ]
    return request._replace(async_fn_args=(rank, buckets, results), preload_fn=None)


def one_after_another(requests: list[AsyncRequest]) -> AsyncRequest:
    """One request that does what `requests` do, in their order, in one process.

    Megatron's writers of one rank report through one queue, and each takes the next report for its own
    (filesystem_async.py:_get_write_results_queue): two at once would swap them.
    """
    writes = [(request.async_fn, request.async_fn_args) for request in requests if request.async_fn is not None]
    finalise = [function for request in requests for function in request.finalize_fns]
    return AsyncRequest(in_writer if writes else None, (writes,), finalise)


def weights_request(weights: dict[str, torch.Tensor], folder: Path) -> AsyncRequest:
    """A request to write `weights`, of rank 0, to `folder` as transformers does; every rank schedules one."""
    here, there = Pipe(duplex=False)

    def finalise() -> None:
        outcome = [None]
        if weights:
            outcome = [here.recv() if here.poll() else "the writing process died, often for lack of memory"]
        torch.distributed.broadcast_object_list(outcome, src=0)
        if outcome[0] is not None:
            raise RuntimeError(f"the weights in {folder} could not be written: {outcome[0]}")

    return AsyncRequest(write_weights if weights else None, (weights, folder, there), [finalise])


def write_weights(weights: dict[str, torch.Tensor], folder: Path, report: Connection) -> None:
    """Write the safetensors files, synced, and send None, or what went wrong."""
    try:
        save_torch_state_dict(weights, folder)
        for path in folder.glob("model*.safetensors"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    except Exception as error:
        report.send(f"{type(error).__name__}: {error}")
    else:
        report.send(None)


def in_writer(writes: list[tuple[Callable, tuple]]) -> None:
    """Call each function with its arguments, in a forked process that neither outlives the rank nor hides its death.

    A rank's peers, Ray and the driver of a GPU notice its end by what it had open, and that is open here as well.
    """
    end_with_parent = partial(signal_at_parents_death, signal.SIGKILL)
    end_with_parent()
    os.register_at_fork(after_in_child=end_with_parent)  # Megatron's writer forks one process a file
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            target = os.readlink(entry)
        except OSError:  # the listing's own
            continue
        if int(entry.name) > 2 and target.startswith(("socket:", "/dev/nvidia")):
            os.close(int(entry.name))
    for write, args in writes:
        write(*args)
