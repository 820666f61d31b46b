"""Weights from the trainer's first rank to rollout engines on devices of their own, through host memory and gloo.

verl 0.9.1 has transports for this, each for one kind of device (nccl, which needs CuPy; nixl, mooncake, hccl). This one
needs nothing but TCP between the nodes, so it runs without a GPU too; it moves what the network and the host's memory
move. Neither gloo nor its store asks who sends, so nothing that comes is unpickled. Named by
`actor_rollout_ref.rollout.checkpoint_engine`, imported there in every process.
"""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import ray
import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from retool_mcore.backends.verl import push_socket  # noqa: F401  (it registers what hands them on to vLLM)

TIMEOUT = timedelta(minutes=10)


@CheckpointEngineRegistry.register("host")
class HostWeights(CheckpointEngine):
    """`bucket_size`: bytes that are sent at once; a larger tensor goes alone."""

    def __init__(self, bucket_size: int, is_master: bool = False):
        self.bucket_size = bucket_size
        self.store: TCPStore | None = None
        self.group: ProcessGroupGloo | None = None
        self.rank = -1

    def prepare(self) -> tuple[str, int]:
        """Return the address of this worker and a port that it holds."""
        address = ray.util.get_node_ip_address().strip("[]")
        listener = socket.create_server((address, 0))  # the store itself would listen on all addresses
        port = listener.getsockname()[1]
        self.store = TCPStore(
            address, port, is_master=True, wait_for_workers=False, timeout=TIMEOUT, master_listen_fd=listener.detach()
        )
        return address, port

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list):
        """The trainer's rank 0 is rank 0 of the group, the engines' workers follow, other trainers' ranks are -1."""
        size, meeting = 1 + rollout_world_size, metadata[0]

        def arguments(ranks: list[int]) -> dict[str, list]:
            return {"rank": ranks, "size": [size] * len(ranks), "meeting": [meeting] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, meeting: tuple[str, int]) -> None:
        self.rank = rank
        if rank != 0:
            self.store = None
        if rank > 0:
            self.store = TCPStore(*meeting, is_master=False, timeout=TIMEOUT)
        if rank >= 0:
            self.group = ProcessGroupGloo(self.store, rank, size, TIMEOUT)

    def finalize(self) -> None:
        self.group = self.store = None

    @torch.no_grad()
    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None) -> dict:
        """Send all of `weights`, (name, tensor); ranks outside the group only take part in gathering them.

        Returns {"push/bytes"} on rank 0.
        """
        bucket: list[tuple[str, torch.Tensor]] = []
        waiting = total = 0
        for name, weight in weights:
            if self.rank != 0:
                continue
            if bucket and waiting + weight.nbytes > self.bucket_size:
                self._send(bucket)
                bucket, waiting = [], 0
            bucket.append((name, weight.detach().to("cpu", copy=True).contiguous()))
            waiting, total = waiting + weight.nbytes, total + weight.nbytes
        if self.rank != 0:
            return {}
        self._send(bucket)
        self._broadcast_layout(None)
        return {"push/bytes": total}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of everything that rank 0 sends, on the host."""
        while (layout := self._broadcast_layout()) is not None:
            buffer = self._broadcast(torch.empty(sum(size for *_, size in layout), dtype=torch.uint8))
            start = 0
            for name, shape, dtype, size in layout:
                # A copy of its own: a slice may start where its type may not.
                yield name, buffer[start : start + size].clone().view(getattr(torch, dtype)).view(shape)
                start += size

    def _send(self, bucket: list[tuple[str, torch.Tensor]]) -> None:
        if bucket:
            layout = [(name, [*w.shape], str(w.dtype).removeprefix("torch."), w.nbytes) for name, w in bucket]
            self._broadcast_layout(layout)
            self._broadcast(torch.cat([weight.view(-1).view(torch.uint8) for _, weight in bucket]))

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        options = BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()
        return tensor

    def _broadcast_layout(self, layout: list[tuple[str, list[int], str, int]] | None = None):
        if self.rank == 0:
            data = torch.frombuffer(bytearray(json.dumps(layout).encode()), dtype=torch.uint8)
            self._broadcast(torch.tensor([len(data)]))
            self._broadcast(data)
            return layout
        size = self._broadcast(torch.zeros(1, dtype=torch.int64))
        return json.loads(self._broadcast(torch.empty(int(size), dtype=torch.uint8)).numpy().tobytes())
