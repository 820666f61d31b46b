"""The rollout engine that shares the trainer's GPUs: its memory, and the time of generation and of the weight push.

verl's colocated order of a step: vLLM generates with the trainer asleep, the trainer updates with vLLM asleep, then
vLLM's weights come back next to the trainer's and are overwritten by the push.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from retool_mcore.planner.flops import attention_of_pairs
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import BF16, GIB, Memory, models, stage_parameters, staying
from retool_mcore.planner.shape import Shape

# Bytes of vLLM awake besides weights and KV cache: context, NCCL, activations of a prefill chunk, CUDA graphs. Not
# measured yet.
ENGINE_OVERHEAD = 5.0 * GIB
PUSH_BUCKET = 2.0 * GIB  # rollout.weight_bucket_mb of our GPU configurations
MARGIN = 0.02  # share of the GPU left free; it covers what an 80 GB card shows less than 80 GiB
LEAST_SEQUENCES = 8  # a replica's KV cache must hold at least this many of the longest sequences

PUSH_S = 0.9  # measured with stock verl on 4 x H200: 0.93 s for 15 GB and 0.92 s for 34 GB, so it is overhead
DECODE_S = 1.5e-3  # seconds of a decode step besides memory traffic: scheduler, sampling, launches
ALL_REDUCE_S = 8.0e-6  # seconds of one all-reduce of a decode step; a layer has two
DECODE_HBM = 0.8  # share of the HBM bandwidth that decoding reaches


@dataclass(frozen=True)
class Rollout:
    """vLLM's replicas of `tp` GPUs each, and the share of a GPU's memory that one may take."""

    tp: int
    utilisation: float  # gpu_memory_utilization
    cache_tokens: int  # that a replica's KV cache holds
    max_num_seqs: int = 256  # that a replica works at


def weight_bytes(shape: Shape, tp: int) -> float:
    return BF16 * shape.parameters / tp


def cache_bytes_a_token(shape: Shape, tp: int) -> float:
    """On one GPU; with fewer key/value heads than ranks vLLM keeps copies."""
    return 2 * BF16 * shape.layers * shape.kv_width / min(tp, shape.kv_heads)


def resident(shape: Shape, layout: Layout, held: Memory, beside: Sequence[str] = ()) -> float:
    """Bytes of the trainer that stay on the GPU while vLLM generates: what is not offloaded, and its context.

    beside: the other `memory.models` next to the policy.
    """
    stages = (models(shape, layout, stage) for stage in layout.stages)
    kept = max(sum(staying(parts[name], layout) for name in ("policy", *beside)) for parts in stages)
    return kept + held.outside


def engine(shape: Shape, machine: Machine, tp: int, utilisation: float, max_num_seqs: int = 256) -> Rollout:
    cache = utilisation * machine.memory - weight_bytes(shape, tp) - ENGINE_OVERHEAD
    return Rollout(tp, utilisation, int(max(0.0, cache) / cache_bytes_a_token(shape, tp)), max_num_seqs)


def fit(shape: Shape, machine: Machine, tp: int, there: float, max_num_seqs: int = 256) -> Rollout:
    """vLLM with `tp` in what the trainer leaves that has `there` bytes on the GPU; see `lacks`."""
    free = machine.memory * (1 - MARGIN) - there
    return engine(shape, machine, tp, max(0.0, min(0.9, math.floor(100 * free / machine.memory) / 100)), max_num_seqs)


def lacks(shape: Shape, layout: Layout, machine: Machine, found: Rollout, there: float, longest: int) -> str | None:
    """Say why vLLM does not fit next to a trainer that has `there` bytes on the GPU; None: it does."""
    free = machine.memory * (1 - MARGIN) - there
    push = weight_bytes(shape, found.tp) + ENGINE_OVERHEAD + PUSH_BUCKET
    push += BF16 * max(stage_parameters(shape, layout, stage) for stage in layout.stages) * layout.param_offload
    if found.utilisation * machine.memory > free or push > free:
        wanted = max(found.utilisation * machine.memory, push)
        return f"vLLM takes {wanted / GIB:.1f} GiB where the trainer leaves {max(0.0, free) / GIB:.1f}"
    if found.cache_tokens < LEAST_SEQUENCES * longest:
        return f"vLLM's cache holds {found.cache_tokens:,} tokens, fewer than {LEAST_SEQUENCES} longest trajectories"
    return None


@dataclass(frozen=True)
class Costs:
    """Seconds of an engine's work: a decode step reads all weights and the KV cache of what is running, or multiplies
    for longer than that takes."""

    weights: float  # to read them
    context: float  # to read a token of the cache
    token: float  # the products of a token
    launch: float  # of a step, in addition to those
    pair: float  # of a query and a key, where many tokens are read in at once

    @classmethod
    def of(cls, shape: Shape, machine: Machine, tp: int) -> Self:
        hbm, peak = DECODE_HBM * machine.hbm, tp * machine.bf16
        return cls(
            weights=weight_bytes(shape, tp) / hbm,
            context=cache_bytes_a_token(shape, tp) / hbm,
            token=2.0 * shape.matrices / (peak * machine.constants.matmul),
            launch=DECODE_S + 2 * shape.layers * ALL_REDUCE_S * (tp > 1),
            pair=attention_of_pairs(shape, 1) / (peak * machine.constants.attention),
        )


def generation_seconds(shape: Shape, rollout: Rollout, batch: Batch, machine: Machine, *, world: int) -> float:
    """Generation of the batch, which lasts for as many decode steps as the longest sequence has tokens, or longer when
    not all sequences run at once. `simulate.py` plays it, with turns and a cache that fills."""
    share, costs = batch.share(max(1, world // rollout.tp)), Costs.of(shape, machine, rollout.tp)
    sequences = len(share.lengths)
    at_once = max(1, min(rollout.max_num_seqs, sequences, rollout.cache_tokens * sequences // share.tokens))
    steps = max(share.lengths[0], share.tokens / at_once)
    # The token at position i reads i positions of the cache: over a step's tokens, all pairs.
    read = steps * costs.weights + share.pairs * costs.context
    return max(read, share.tokens * costs.token) + steps * costs.launch
