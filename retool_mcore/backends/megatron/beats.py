"""Where an engine beats (heartbeat.py): at every micro-batch, on rank 0."""

import os
import time
from collections.abc import Iterator

from verl.utils import tensordict_utils

from retool_mcore.state import heartbeat


class MicroBatches:
    """Counts one engine's micro-batches."""

    def __init__(self) -> None:
        self.updates = self.done = 0
        self.began = 0.0  # the newest, perf_counter

    def begin(self, forward_only: bool) -> None:
        self.done, self.began = 0, time.perf_counter()
        self.updates += not forward_only

    def taken(self, batches: Iterator) -> Iterator:
        """Beat as a micro-batch is taken: those before it are done."""
        batch = next(batches)
        if os.environ.get("RANK", "0") == "0":
            total = tensordict_utils.get_non_tensor_data(batch, key="num_micro_batch", default=0)
            heartbeat.beat(heartbeat.RANK, "micro-batches", self.done, total, updates=self.updates)
        self.done += 1
        yield batch
