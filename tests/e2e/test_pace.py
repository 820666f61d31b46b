"""Ranks that are slow at their own part are named, on real processes over gloo."""

import os

import pytest
from forked_programs import lines_printed, started

from retool_mcore.cluster.network import free_base_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RANK = """
import sys, time
import torch.distributed as dist
import verl  # its cpu platform
from retool_mcore.backends.megatron.pace import IN_A_ROW, watched
dist.init_process_group("gloo")
began = [0.0]
finalize = watched(lambda *given: dist.barrier() or given, lambda: began[0])
def update(slow):
    began[0] = time.perf_counter()
    time.sleep(0.3 if dist.get_rank() == slow else 0.02)
    assert finalize("model", 3) == ("model", 3)
for turn in range(IN_A_ROW - 1): update(slow=1)
update(slow=2)  # another one: counted anew
for turn in range(IN_A_ROW - 1): update(slow=2)
for turn in range(3): update(slow=2)  # told once
"""


def test_a_rank_that_is_slow_in_a_row_is_named_once():
    port = str(free_base_port(os.getpid(), 1))
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURMD_NODENAME": "n9"}
    printed = lines_printed({str(rank): started(RANK, **common, RANK=str(rank)) for rank in range(3)})
    told = [line for lines in printed.values() for line in lines if line.startswith("Slow: ")]
    assert len(told) == 1 and told[0].startswith("Slow: rank 2 on n9 takes 0."), printed
