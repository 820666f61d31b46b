"""Checkpoints that hold the GPUs up for a write to memory, while the writes to the disk go on beside the next steps.

With `checkpoint.async_save` verl and Megatron save as ever, synchronously, but into a folder in the node's memory
(staging.py), from which a thread of each rank moves the files to where they belong. Nothing of Megatron's own
asynchronous writers is used: they differ between its releases, and 0.18 leaves them to a package that verl 0.9.1 does
not call. When a rank's part is on the disk it says so by a file; the process that keeps the books (the trainer's, or
rank 0 of SFT) counts those and declares the checkpoint whole, in the middle of a step if need be.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

from retool_mcore.backends.verl.gpu_worker import GpuWatchingWorker
from retool_mcore.files import sync_tree
from retool_mcore.state import checkpoints, staging

WRITTEN = ".written-"  # and the rank: its part is on the disk; the text is the part's bytes
POLL_S = 0.2


class Task(threading.Thread):
    """`work` in a thread that ends with its process; what it raises is raised again by `ended`."""

    def __init__(self, work: Callable[[], None]):
        super().__init__(daemon=True)
        self.work = work
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def ended(self, blocking: bool) -> bool:
        if blocking:
            self.join()
        if self.error is not None:
            raise self.error
        return not self.is_alive()


class StagedCheckpointManager(MegatronCheckpointManager):
    """verl's manager, whose files with `async_save` reach the disk after `save_checkpoint` has returned.

    Methods that are overridden: verl/utils/checkpoint/megatron_checkpoint_manager.py, release 0.9.1.
    """

    @classmethod
    def take_over(cls, engine) -> None:
        """Make the manager of verl's Megatron `engine`, which builds its own, one of this class."""
        manager = engine.checkpoint_mananager
        assert type(manager) is MegatronCheckpointManager, f"verl's engine has another manager: {type(manager)}"
        manager.__class__ = cls
        manager.staged = manager.checkpoint_config.async_save
        # Megatron itself is to write synchronously.
        manager.checkpoint_config = replace(manager.checkpoint_config, async_save=False)
        manager.writer = None

    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
        """All ranks together. One save at a time: waits for the one before."""
        self.finish(blocking=True)
        if not self.staged:
            super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
            if self.rank == 0:  # Megatron syncs its own files, and nobody the Hugging Face weights
                sync_tree(Path(local_path))
            return
        folder, lock = staging.hold(str(local_path))
        super().save_checkpoint(str(folder), None, global_step, None)
        torch.distributed.barrier()  # the files of this node's other ranks are there
        self.writer = Task(lambda: self._write(folder, lock, Path(local_path)))

    def finish(self, blocking: bool) -> None:
        """Raises RuntimeError when this rank could not write its part; blocking: wait until it is written."""
        if self.writer is not None and self.writer.ended(blocking):
            self.writer = None

    def _write(self, folder: Path, lock: int, target: Path) -> None:
        try:
            size = staging.move(folder, target)
            sync_tree(target, folders_only=True)
            (target / f"{WRITTEN}{self.rank}").write_text(str(size))
        except OSError as error:
            raise RuntimeError(f"the checkpoint in {target} could not be written: {error}") from error
        finally:
            os.close(lock)
            staging.sweep()


class Save:
    """One checkpoint on its way to COMPLETE, in the process that keeps the books. To be made when all ranks' calls to
    save have returned and the process's own files are written.

    Args:
        started: time.monotonic() when the step began to wait for it.
        parts: how many ranks write a part beside the steps; 0: all is written.
        until: returns when the checkpoint may be declared whole; called in a thread of its own.
    """

    def __init__(self, checkpoint: Path, started: float, parts: int, until: Callable[[], None] = lambda: None):
        self.checkpoint, self.started, self.parts, self.until = checkpoint, started, parts, until
        self.metrics = {"checkpoint/pause_s": time.monotonic() - started}
        self.task = Task(self._complete)

    def ended(self, blocking: bool) -> dict[str, float] | None:
        """Once it is whole: checkpoint/pause_s (what the step waited), /bytes and /complete_s (from its start)."""
        return self.metrics if self.task.ended(blocking) else None

    def _complete(self) -> None:
        while len(written := list(self.checkpoint.rglob(f"{WRITTEN}*"))) < self.parts:
            time.sleep(POLL_S)
        for part in written:
            part.unlink()
        size = sum(path.stat().st_size for path in self.checkpoint.rglob("*") if path.is_file())
        clock = time.monotonic()
        self.until()
        waited = time.monotonic() - clock
        checkpoints.mark_complete(self.checkpoint)
        seconds = time.monotonic() - self.started
        if not self.parts:
            self.metrics["checkpoint/pause_s"] = seconds - waited
        self.metrics |= {"checkpoint/bytes": float(size), "checkpoint/complete_s": seconds}
        told = "{name} is whole: {size:.3g} GB, the step waited {pause:.1f} s, COMPLETE after {seconds:.1f} s"
        pause = self.metrics["checkpoint/pause_s"]
        print(told.format(name=self.checkpoint.name, size=size / 1e9, pause=pause, seconds=seconds), flush=True)


class SavingWorker(GpuWatchingWorker):
    """verl's RL worker with StagedCheckpointManager."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        if "actor" in self.role:
            StagedCheckpointManager.take_over(self.actor.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_saves(self, blocking: bool) -> None:
        """StagedCheckpointManager.finish."""
        self.actor.engine.checkpoint_mananager.finish(blocking)
