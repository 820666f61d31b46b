"""Ranks that are slow at their own part are named, on real processes over gloo."""

import os
import subprocess
import sys
from pathlib import Path

from retool_mcore.cluster.network import free_base_port

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


def test_a_rank_that_is_slow_in_a_row_is_named_once(tmp_path):
    environment = os.environ | {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "VERL_PLATFORM": "cpu"}
    environment |= {"MASTER_PORT": str(free_base_port(os.getpid(), 1)), "SLURMD_NODENAME": "n9", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    said = [process.communicate(timeout=110)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    told = [line for text in said for line in text.splitlines() if line.startswith("Slow: ")]
    assert len(told) == 1 and told[0].startswith("Slow: rank 2 on n9 takes 0."), said
