"""torch on a machine without CUDA: code that names the "cuda" device runs on the CPU.

verl's Megatron engine and Megatron-core name the device in factory functions and moves instead of asking for it
(megatron/core/pipeline_parallel/schedules.py:596,983,2138, megatron/core/optimizer/clip_grads.py:90,
megatron/core/optimizer/optimizer.py:473), and pin memory (verl/utils/megatron_utils.py:1937). `install()` redirects
those names, in trainer processes only: the module is imported by `megatron_cpu`, which verl's engine import triggers.
With CUDA it does nothing.

Not covered: CUDA graphs, streams that really overlap, memory figures (all zero).
"""

import contextlib
import functools
import os

import torch

from retool_mcore.backends.cpu import CPU_THREADS

FACTORIES = (
    *("zeros", "ones", "empty", "full", "tensor", "as_tensor", "scalar_tensor", "arange", "linspace", "eye"),
    *("rand", "randn", "randint", "randperm", "empty_strided", "empty_like", "zeros_like", "ones_like", "full_like"),
)


class Stream:
    """Stands for streams and events: every call returns at once, elapsed time is zero."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def query(self):
        return True

    def elapsed_time(self, *args):
        return 0.0


def on_cpu(device):
    """The CPU where `device` names a CUDA device (an index, "cuda", "cuda:1", torch.device), else `device`."""
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):
        return "cpu"
    name = device.type if isinstance(device, torch.device) else device
    return "cpu" if isinstance(name, str) and name.startswith("cuda") else device


def installed() -> bool:
    return getattr(torch.cuda, "_retool_cpu", False)


def install() -> None:
    """Redirect CUDA names to the CPU, once a process; nothing where CUDA is available."""
    if installed() or torch.cuda.is_available():
        return
    torch.cuda._retool_cpu = True
    use_threads()
    for name in FACTORIES:
        setattr(torch, name, _factory(getattr(torch, name)))
    _redirect_moves()
    _redirect_namespace()
    _redirect_barrier()


def use_threads() -> None:
    """Give this process the threads that its layout has for each; it started with one, so that it could be forked.

    Nothing where the user's OMP_NUM_THREADS decides, since stage_env then leaves the variable out.
    """
    if CPU_THREADS in os.environ:
        torch.set_num_threads(int(os.environ[CPU_THREADS]))


def _factory(make):
    @functools.wraps(make)
    def wrapped(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return wrapped


def _redirect_moves() -> None:
    tensor_to, tensor_type = torch.Tensor.to, torch.Tensor.type

    def to(self, *args, **kwargs):
        if args and isinstance(args[0], str | torch.device | int):
            args = (on_cpu(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return tensor_to(self, *args, **kwargs)

    def type_(self, *args, **kwargs):
        # Megatron's optimizers sort parameters by "torch.cuda.FloatTensor" and its kin.
        result = tensor_type(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    torch.Tensor.to = to
    torch.Tensor.type = type_
    torch.Tensor.cuda = torch.nn.Module.cuda = torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def _redirect_namespace() -> None:
    cuda = torch.cuda
    nothing = ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed_all")
    for name in nothing:
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.current_device = lambda: "cpu"
    cuda.get_device_capability = lambda *args, **kwargs: (0, 0)
    cuda.get_device_name = lambda *args, **kwargs: "cpu"
    cuda.mem_get_info = lambda *args, **kwargs: (1 << 34, 1 << 34)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: Stream()
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args, **kwargs: None


def _redirect_barrier() -> None:
    barrier = torch.distributed.barrier
    # device_ids is for NCCL only.
    torch.distributed.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group, async_op)
