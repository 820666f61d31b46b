"""What benchmarks/reshard.py and rollout.py put in the place of the product's classes: the same, with clocks in them.

Worker and vLLM extension note, for every weight push, the seconds of each part; the trainer pushes several times under
several settings and then stops. Nothing of verl is changed but what a variant names. Variants beyond verl's settings:
`kept` keeps the bucket's buffer and its mapping from push to push, `overlapped` also fills one half of it while vLLM
loads the other, `quiet` leaves out the emptying of torch's memory cache on both sides, `reconnect` has vLLM's end look
for the trainer's socket again after 1 ms instead of ZeroMQ's 100.
"""

import contextlib
import importlib
import json
import os
import threading
import time
from pathlib import Path

import ray
import torch
from push_transport import (
    TRACE,
    Clocks,
    KeptSender,
    OverlappedSender,
    StockSender,
    TimedReceiver,
    read_variant,
    write_line,
)
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.utils import Role
from verl.utils.device import get_torch_device
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

from retool_mcore.backends.verl.task_runner import Runner
from retool_mcore.backends.verl.trainer import PolicyWorker, RetoolTrainer
from retool_mcore.backends.verl.weight_sync_vllm import VerifyingExtension

SETTINGS = "RETOOL_PUSH_SETTINGS"  # JSON: the variants to push with, and how often


@contextlib.contextmanager
def patched(*places: tuple):
    """(object, attribute, value) each, put back afterwards."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class LowestFree(threading.Thread):
    """The least free device memory while it runs, bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lowest, self.done = float("inf"), threading.Event()

    def run(self):
        while not self.done.is_set():
            self.lowest = min(self.lowest, get_torch_device().mem_get_info()[0])
            time.sleep(0.002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.done.set()
        self.join()


def no_cleaning(device) -> list[tuple]:
    return [(device, "empty_cache", lambda: None), (device, "ipc_collect", lambda: None)]


class TimedWorker(PolicyWorker):
    """The product's worker; `set_push` chooses the variant of the pushes that follow."""

    variant: dict = {}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_push(self, variant: dict):
        self.variant = variant
        adapter = self.rollout.config
        if "bucket_mb" in variant:
            object.__setattr__(adapter.checkpoint_engine, "update_weights_bucket_megabytes", variant["bucket_mb"])
        if "resident" in variant:
            self.config.rollout.free_cache_engine = not variant["resident"]
            object.__setattr__(adapter, "free_cache_engine", not variant["resident"])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int = None, mode: str = "auto"):
        clocks, device, rollout = Clocks(), get_torch_device(), self.rollout
        engine = self.actor.engine
        export, resume, push = engine.get_per_tensor_param, rollout.resume, rollout.update_weights
        kind, sync = self.variant.get("sender", "stock"), self.variant.get("sync", False)
        bytes_ = 0

        def exported(**kwargs):
            with clocks.of("export_call"):
                weights, adapter = export(**kwargs)
            return stream(weights), adapter

        def stream(weights):
            nonlocal bytes_
            weights = iter(weights)
            while True:
                start = time.perf_counter()
                try:
                    name, weight = next(weights)
                except StopIteration:
                    return
                if sync:
                    device.synchronize()
                clocks.add("export", time.perf_counter() - start)
                bytes_ += weight.nbytes
                yield name, weight

        async def timed_resume(tags):
            with clocks.of("wake_" + "_".join(tags)):
                await resume(tags=tags)

        async def timed_push(*args, **kwargs):
            with clocks.of("send_all"):
                await push(*args, **kwargs)

        sender = {"stock": StockSender, "kept": KeptSender, "overlapped": OverlappedSender}[kind]
        module = importlib.import_module("verl.workers.rollout.vllm_rollout.vllm_rollout")
        made = lambda **kwargs: sender(clocks=clocks, **kwargs)  # noqa: E731
        places = [
            (engine, "get_per_tensor_param", exported),
            (rollout, "resume", timed_resume),
            (rollout, "update_weights", timed_push),
            (module, "BucketedWeightSender", made),
            (torch.distributed, "barrier", clocks.wrap("barrier", torch.distributed.barrier)),
        ]
        if self.variant.get("quiet"):
            places += no_cleaning(device)
        else:
            places += [
                (device, "empty_cache", clocks.wrap("empty_cache", device.empty_cache)),
                (device, "ipc_collect", clocks.wrap("ipc_collect", device.ipc_collect)),
            ]
        device.reset_peak_memory_stats()
        allocated = device.memory_allocated()
        started, start = time.time(), time.perf_counter()
        # Asking for the free memory costs time of its own, so only where the push is slowed down anyway.
        with patched(*places), LowestFree() if sync else contextlib.nullcontext() as memory:
            result = await super().update_weights(global_steps=global_steps, mode=mode)
        seconds = time.perf_counter() - start
        record = {"variant": self.variant.get("name", "first"), "rank": self.rank, "started": started}
        record |= {"seconds": seconds, "bytes": bytes_, "parts": clocks.seconds, "counts": clocks.counts}
        record |= {"torch_peak_extra": device.max_memory_allocated() - allocated}
        if memory is not None:
            record["device_peak_extra"] = device.mem_get_info()[0] - memory.lowest
        write_line(f"sender_{self.rank}", record)
        return result


class TimedExtension(VerifyingExtension):
    """The product's extension of vLLM's worker, with clocks."""

    def update_weights_from_ipc(self, *args, **kwargs):
        import vllm.model_executor.model_loader.utils as loader

        clocks = self._push_clocks = Clocks()
        device = get_torch_device()
        made = lambda **kwargs: TimedReceiver(clocks=clocks, **kwargs)  # noqa: E731
        places = [
            (transfer, "BucketedWeightReceiver", made),
            (
                loader,
                "process_weights_after_loading",
                clocks.wrap("process_weights", loader.process_weights_after_loading),
            ),
        ]
        variant = read_variant()
        if variant.get("quiet"):
            places += no_cleaning(device)
        started, start = time.time(), time.perf_counter()
        with patched(*places):
            super().update_weights_from_ipc(*args, **kwargs)
        record = {"rank": self.rank, "replica": os.environ.get("VERL_REPLICA_RANK", "0"), "started": started}
        record |= {"seconds": time.perf_counter() - start, "parts": clocks.seconds, "counts": clocks.counts}
        write_line(f"receiver_{record['replica']}_{self.rank}", record)

    def _update_weights(self, *args, **kwargs):
        with self._push_clocks.of("load_weights"):
            super()._update_weights(*args, **kwargs)


class TimedTrainer(RetoolTrainer):
    """Pushes once, verified, as every run does; then under every variant of SETTINGS, and verifies the last again."""

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        self.role_worker_mapping |= {
            role: ray.remote(TimedWorker)
            for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
            if role in self.mapping
        }

    def on_init_end(self):
        settings = json.loads(os.environ.get(SETTINGS, "{}"))
        with exclusive(settings.get("lock")):
            super().on_init_end()
            write_line("trainer", {"variant": "verify", **self.pushed})
            for variant in settings.get("variants", []):
                self.push_with(variant, settings["repeats"])

    def push_with(self, variant: dict, repeats: int) -> None:
        """`repeats` timed pushes after one that warms up; the engine's weights are compared afterwards."""
        self.actor_rollout_wg.set_push(variant)
        (Path(os.environ[TRACE]) / "variant.json").write_text(json.dumps(variant))
        for number in range(repeats + 1):
            slept = 0.0
            if not variant.get("resident"):
                start = time.perf_counter()
                self.checkpoint_manager.sleep_replicas()
                slept = time.perf_counter() - start
            start = time.perf_counter()
            self.checkpoint_manager.update_weights(self.global_steps)
            seconds = time.perf_counter() - start
            write_line("trainer", {"variant": variant["name"], "n": number, "seconds": seconds, "sleep": slept})
            print(f"push {variant['name']} {number}: {seconds:.3f} s, sleep {slept:.3f} s", flush=True)
        write_line("trainer", {"variant": variant["name"], "verify": self.verified()})

    def verified(self) -> dict:
        return ray.get(self.actor_rollout_wg.verify_push())[0]


class OnlyPushes(TimedTrainer):
    """Ends where training would begin."""

    def fit(self, agent_loop_manager):
        pass

    def finish_saves(self, blocking):
        pass


class PushRunner(Runner):
    trainer_class = OnlyPushes


class StepRunner(Runner):
    trainer_class = TimedTrainer


@contextlib.contextmanager
def exclusive(path: str | None):
    """Holds a file's lock: runs may start together, and measure one after the other."""
    if path is None:
        yield
        return
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
