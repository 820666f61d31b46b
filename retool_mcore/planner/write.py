"""A chosen layout as a file of configs/parallel/."""

import re
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Plan, Problem

RECOMPUTE_KEYS = {
    "none": "    recompute_granularity: null",
    "selective": "    recompute_granularity: selective\n    recompute_modules: [core_attn]",
    "mlp": "    recompute_granularity: selective\n    recompute_modules: [mlp]",
    "full": "    recompute_granularity: full\n    recompute_method: uniform\n    recompute_num_layers: 1",
}

BASE = "1gpu"  # the group that a written file is laid over: its settings are those of all GPUs

TEMPLATE = """\
# Made by `{command}`.
# Predicted: {peak:.1f} of {memory:.0f} GiB on the fullest GPU at the update's peak,
# {update:.1f} s an update of {sequences} sequences ({tokens:,} tokens){step}.
defaults:
  - {base}
  - _self_

nodes: {nodes}
gpus_per_node: {gpus}
tp: {tp}
pp: {pp}
ep: {ep}
sequence_parallel: {sequence_parallel}
rollout_tp: {rollout_tp}
async_save: true  # a save lies in memory first (/dev/shm) and goes to the disk beside the next steps
micro_batch_tokens: {micro_batch_tokens}  # of one context-parallel rank
loader_workers: 4
gpu_memory_utilization: {utilisation:.2f}  # of the GPU; what stays of the trainer beside it is left free
megatron:
  virtual_pipeline_model_parallel_size: {vpp}
  context_parallel_size: {cp}
  param_offload: {param_offload}  # weights and gradients leave the GPU while vLLM generates
  optimizer_offload: {optimizer_offload}
  override_transformer_config:
{recompute}
rollout:
  enforce_eager: false  # long responses: CUDA graphs save more than their capture costs
  max_num_batched_tokens: {max_num_batched_tokens}
"""


def config_text(problem: Problem, plan: Plan, command: str) -> str:
    layout = plan.layout
    return TEMPLATE.format(
        command=command,
        base=BASE,
        peak=plan.gpu_bytes / GIB,
        memory=problem.machine.memory / GIB,
        update=plan.seconds["update"],
        sequences=len(problem.batch.lengths),
        tokens=sum(problem.batch.lengths),
        step=f", {plan.step:.1f} s a step of RL with them" if problem.rl else "",
        nodes=problem.nodes,
        gpus=problem.machine.gpus_per_node,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        sequence_parallel=_yaml(layout.shards_sequence),
        rollout_tp=plan.rollout.tp if plan.rollout else layout.tp,
        micro_batch_tokens=layout.micro_batch_tokens,
        utilisation=plan.rollout.utilisation if plan.rollout else 0.5,
        vpp="null" if layout.vpp == 1 else layout.vpp,
        cp=layout.cp,
        param_offload=_yaml(layout.param_offload),
        optimizer_offload=_yaml(layout.optimizer_offload),
        recompute=RECOMPUTE_KEYS[layout.recompute],
        max_num_batched_tokens=problem.batch.longest,
    )


def _yaml(value: bool) -> str:
    return "true" if value else "false"


def check_target(path: Path, config_dir: Path) -> None:
    """Raises UserError unless `path` is a new NAME.yaml in configs/parallel/, where `parallel=NAME` finds it."""
    wanted = config_dir / "parallel"
    if path.absolute().parent.resolve() != wanted.resolve() or not re.fullmatch(r"[\w.-]+\.yaml", path.name):
        raise UserError(f"--write {path}: expected a NAME.yaml in configs/parallel/, so that parallel=NAME finds it.")
    if path.exists():
        raise UserError(f"--write {path}: the file exists; remove it first or choose another name.")


def write_config(problem: Problem, plan: Plan, path: Path, command: str) -> None:
    write_atomically(path, config_text(problem, plan, command))
