"""Loaded by verl in every process (VERL_USE_EXTERNAL_MODULES): writes what the Megatron engine computes.

To REHEARSAL_FOLDER, by the first rank, every tensor whole and under its Hugging Face name, whatever the layout:
Megatron gathers over the data-parallel ranks as it gathers updated parameters, and the bridge joins tensors, stages and
experts as for a push.
- `update_N.pt`: the gradients before the N-th update and the memory that every process takes, in SFT after the first
  update also parameters and Adam's moments.
- `loaded.pt`: parameters and moments of a checkpoint that was read, after which the next update is the second.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from retool_mcore.backends.import_hook import ImportHook

FOLDER = "REHEARSAL_FOLDER"  # names the variable
MOMENTS = ("exp_avg", "exp_avg_sq")


def optimizers(engine) -> list:
    return getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])


def shards(engine) -> list[torch.Tensor]:
    """What this rank's optimizers update: float32, so views of the parameters themselves."""
    return [p for one in optimizers(engine) for group in one.param_groups for p in group["params"]]


@torch.no_grad()
def whole(engine, value_of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    """`value_of` each shard, put where the parameters lie, gathered and exported as they are, which come back then."""

    def put(values):
        for shard, value in zip(shards(engine), values, strict=True):
            shard.copy_(value)
        for module in engine.module:
            module.start_param_sync(force_sync=True)

    kept = [shard.clone() for shard in shards(engine)]
    put([value_of(shard).clone() for shard in shards(engine)])
    found = {name: tensor.detach().clone() for name, tensor in engine.get_per_tensor_param()[0]}
    put(kept)
    return found


def copies_differ(engine) -> list[str]:
    """Parameters that every tensor-parallel rank holds whole and whose gradients are not bitwise alike there."""
    from megatron.core import parallel_state

    group, differing = parallel_state.get_tensor_model_parallel_group(), []
    for module in engine.module:
        for name, parameter in module.named_parameters():
            if getattr(parameter, "tensor_model_parallel", False) or not getattr(parameter, "allreduce", True):
                continue
            found = [torch.empty_like(parameter.main_grad) for _ in range(group.size())]
            torch.distributed.all_gather(found, parameter.main_grad.contiguous(), group=group)
            differing += [name] if any(not torch.equal(found[0], one) for one in found) else []
    return differing


def state(engine) -> dict:
    states = {id(p): s for one in optimizers(engine) for p, s in one.optimizer.state.items()}
    found = {"parameters": whole(engine, lambda shard: shard)}
    for name in MOMENTS:
        found[name] = whole(engine, lambda shard, name=name: states[id(shard)][name])
    steps = {float(s["step"]) for s in states.values()}
    return found | {"steps": gathered(sorted(steps))}


def gathered(value) -> list:
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def write(name: str, content: dict) -> None:
    if torch.distributed.get_rank() == 0:
        folder = Path(os.environ[FOLDER])
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(content, folder / f"{name}.pt")


def memory() -> dict[str, int]:
    """Bytes of this process; `pss` counts of a page that n processes share an n-th: their sum is what is taken."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in lines)}
    own = sizes["Private_Dirty"] + sizes["Private_Clean"]
    return {"pss": sizes["Pss"], "rss": sizes["Rss"], "own": own}


def install(engines) -> None:
    """Put the recording into the policy's engine (the module backends/megatron/engine.py)."""
    optimizer_step, load_checkpoint = engines.Engine.optimizer_step, engines.Engine.load_checkpoint

    def recorded_step(self):
        self.recorded = getattr(self, "recorded", 0) + 1
        for one in optimizers(self):
            one.prepare_grads()
        found = {"gradients": whole(self, lambda shard: shard.grad), "copies_differ": gathered(copies_differ(self))}
        norm = optimizer_step(self)
        if self.recorded == 1 and "RAY_JOB_ID" not in os.environ:
            found |= state(self)
        found |= {"grad_norm": float(norm), "memory": gathered(memory())}
        write(f"update_{self.recorded}", found)
        return norm

    def recorded_load(self, *arguments, **named):
        load_checkpoint(self, *arguments, **named)
        with self.train_mode():
            write("loaded", state(self))
        self.recorded = 1

    engines.Engine.optimizer_step, engines.Engine.load_checkpoint = recorded_step, recorded_load


if FOLDER in os.environ:
    sys.meta_path.insert(0, ImportHook({}, {"retool_mcore.backends.megatron.engine": install}))
