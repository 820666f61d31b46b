"""Senders and receivers of weights with clocks, for push_parts.py: verl's own, and two that keep the buffer."""

import contextlib
import json
import os
import time
from pathlib import Path

import torch
import zmq
from torch.multiprocessing.reductions import reduce_tensor
from verl.utils.device import get_torch_device
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

TRACE = "RETOOL_PUSH_TRACE"  # the folder into which every process writes its pushes
KEPT = "kept"


class Clocks:
    """Seconds by name, of this process's push."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    @contextlib.contextmanager
    def of(self, name: str):
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.counts[name] = self.counts.get(name, 0) + 1

    def wrap(self, name: str, function):
        def timed(*args, **kwargs):
            with self.of(name):
                return function(*args, **kwargs)

        return timed


def write_line(name: str, record: dict) -> None:
    folder = Path(os.environ[TRACE])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def read_variant() -> dict:
    """The variant of the next push, for vLLM's workers."""
    path = Path(os.environ[TRACE]) / "variant.json"
    return json.loads(path.read_text()) if path.exists() else {}


class TimedSocket:
    def __init__(self, socket, clocks: Clocks, name: str) -> None:
        self.socket, self.clocks, self.name = socket, clocks, name

    def __getattr__(self, name):
        return getattr(self.socket, name)

    def recv(self, *args):
        with self.clocks.of(self.name):
            return self.socket.recv(*args)

    def recv_pyobj(self, *args):
        with self.clocks.of(self.name):
            return self.socket.recv_pyobj(*args)


class StockSender(transfer.BucketedWeightSender):
    """verl's sender with clocks."""

    def __init__(self, clocks: Clocks, **kwargs):
        super().__init__(**kwargs)
        self.clocks = clocks

    async def async_send_weights(self, weights):
        with self.clocks.of("send_stream"):
            await super().async_send_weights(weights)

    def _init_socket(self):
        with self.clocks.of("socket"):
            super()._init_socket()
        self.socket = TimedSocket(self.socket, self.clocks, "wait_for_engine")

    def _init_buffer(self):
        with self.clocks.of("make_buffer"):
            super()._init_buffer()

    def _cleanup(self):
        with self.clocks.of("sender_cleanup"):
            super()._cleanup()


class KeptSender(StockSender):
    """Keeps the buffer: the receiver maps it once."""

    buffers: dict = {}

    def _init_buffer(self):
        key = self.bucket_size
        with self.clocks.of("make_buffer"):
            if key not in self.buffers:
                if self.use_shm:
                    name = f"retool_{os.getpid()}_{key}"
                    shm = transfer.create_shared_memory(key, name)
                    buffer, handle = torch.frombuffer(shm.buf, dtype=torch.uint8), {"name": name, "size": key}
                    self.buffers[key] = (buffer, shm)
                else:
                    device = f"{transfer.get_device_name()}:{transfer.get_device_id()}"
                    buffer = torch.empty(key, dtype=torch.uint8, device=device)
                    handle = reduce_tensor(buffer)
                    self.buffers[key] = (buffer, None)
            else:
                handle = None
            self.socket.send_pyobj((KEPT, f"{os.getpid()}_{key}", handle))
            self.socket.recv()
        self.buffer = self.buffers[key][0]

    def _cleanup(self):
        with self.clocks.of("sender_cleanup"):
            self.socket.close()
            self.socket = self.buffer = None


class OverlappedSender(KeptSender):
    """Fills one half of the buffer while the engine loads the other."""

    async def async_send_weights(self, weights):
        from verl.workers.rollout.utils import ensure_async_iterator

        with self.clocks.of("send_stream"):
            try:
                self._init_socket()
                self._init_buffer()
                half, side, offset, pending, meta = self.bucket_size // 2, 0, 0, False, {}
                async for name, weight in ensure_async_iterator(weights):
                    size = weight.element_size()
                    offset = (offset + size - 1) // size * size
                    if offset + weight.nbytes > half and meta:
                        pending = self._flush(meta, pending, last=False)
                        side, offset, meta = 1 - side, 0, {}
                    if weight.nbytes > half:
                        raise ValueError(f"{name} takes {weight.nbytes} bytes, half the bucket is {half}")
                    begin = side * half + offset
                    meta[name] = dict(name=name, shape=weight.shape, dtype=weight.dtype, offset=begin, handle=None)
                    place = self.buffer[begin : begin + weight.nbytes].view(weight.dtype).view(weight.shape)
                    place.copy_(weight, non_blocking=True)
                    offset += weight.nbytes
                self._flush(meta, pending, last=True)
                self.socket.recv()
            finally:
                self._cleanup()

    def _flush(self, meta: dict, pending: bool, last: bool) -> bool:
        with self.clocks.of("sender_synchronize"):
            get_torch_device().synchronize()
        if pending:
            self.socket.recv()
        self.socket.send_pyobj({"bucket_meta": meta, "is_last": last})
        return True


class TimedReceiver(transfer.BucketedWeightReceiver):
    """verl's receiver with clocks, which also understands a kept buffer."""

    kept: dict = {}

    def __init__(self, clocks: Clocks, **kwargs):
        super().__init__(**kwargs)
        self.clocks, self.keeps = clocks, False

    def _init_socket(self):
        self.socket = self.zmq_context.socket(zmq.REP)
        if read_variant().get("reconnect"):
            self.socket.setsockopt(zmq.RECONNECT_IVL, 1)
        self.socket.connect(self.zmq_handle)
        self.socket = TimedSocket(self.socket, self.clocks, "wait_for_trainer")

    def _init_buffer(self):
        message = self.socket.recv_pyobj()
        with self.clocks.of("open_buffer"):
            if isinstance(message, tuple) and message[0] == KEPT:
                _, key, handle = message
                self.keeps = True
                if key not in self.kept:
                    if self.use_shm:
                        self.kept[key] = transfer.rebuild_shared_memory(handle["name"], handle["size"])
                    else:
                        self.kept[key] = (transfer.rebuild_ipc(handle, self.device.index), None)
                self.buffer = self.kept[key][0]
            elif self.use_shm:
                self.buffer, self.shm = transfer.rebuild_shared_memory(message["name"], message["size"])
            else:
                self.buffer = transfer.rebuild_ipc(message, self.device.index)
        self.socket.send(b"")

    def _cleanup(self):
        with self.clocks.of("receiver_cleanup"):
            if not self.keeps:
                return super()._cleanup()
            get_torch_device().synchronize()
            self.buffer = None
            if self._ack_pending:
                self.socket.send(b"")
            self.socket.close()
            self.socket = None
