"""Names a rank that is slow at its own part of the updates: all others wait for it at the end of each.

Compared is the time from an update's begin to `finalize_model_grads_func` (megatron/core/pipeline_parallel/
schedules.py, 0.16 to 0.18), where the replicas' gradients meet. The ranks of a replica wait for each other before, and
look alike; with `overlap_grad_reduce`, which is off by default, all do.
"""

import os
import socket
import time
from collections.abc import Callable
from statistics import median_low

import torch
from verl.utils.device import get_device_id, get_torch_device

FACTOR, IN_A_ROW = 1.5, 5  # of the median; a single update may have longer sequences


def watched(finalize: Callable, began: Callable[[], float]) -> Callable:
    """`finalize`, with a look at the ranks' times before it. `began`: when this rank's update began, perf_counter. One
    rank alone has nobody who waits."""
    if torch.distributed.get_world_size() == 1:
        return finalize
    late: list[int] = []  # who was slow in the updates before

    def finalized(*arguments, **named):
        get_torch_device().synchronize()
        own = torch.tensor([time.perf_counter() - began()], device=get_device_id())
        gathered = own.new_empty(torch.distributed.get_world_size())
        torch.distributed.all_gather_into_tensor(gathered, own)
        times = gathered.tolist()  # the one read of the device
        longest, median = max(times), median_low(times)
        rank = times.index(longest)
        late[:] = [*(other for other in late if other == rank), rank] if longest > FACTOR * median else []
        if len(late) == IN_A_ROW and torch.distributed.get_rank() == rank:
            node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
            timing = f"{longest:.2f} s of an update, the median rank {median:.2f} s"
            print(f"Slow: rank {rank} on {node} takes {timing}: have its GPU and node looked at.", flush=True)
        return finalize(*arguments, **named)

    return finalized
