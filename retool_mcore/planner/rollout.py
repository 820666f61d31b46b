"""The rollout engine that shares the trainer's GPUs: its memory, and the time of generation and of the weight push.

verl's colocated order of a step: vLLM generates with the trainer asleep, the trainer updates with vLLM asleep, then
vLLM's weights come back beside the trainer's and are overwritten by the push.
"""

import math
from dataclasses import dataclass

from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import BF16, ENGINE_ASLEEP, FP32, GIB, Memory, optimizer_bytes, stage_parameters
from retool_mcore.planner.shape import Shape

# vLLM awake beside weights and KV cache: context, NCCL, activations of a prefill chunk, CUDA graphs. Not measured yet.
ENGINE_OVERHEAD = 5.0 * GIB
PUSH_BUCKET = 2.0 * GIB  # rollout.weight_bucket_mb of our GPU configurations
MARGIN = 0.02  # of the GPU: left free, and what an 80 GB card shows less than 80 GiB
LEAST_SEQUENCES = 8  # as many of the longest must have room in a replica's KV cache

# Measured with stock verl on 4 x H200: 0.93 s for 15 GB and 0.92 s for 34 GB, so it is overhead.
PUSH_S = 0.9
# A decode step's time that is not memory traffic: scheduler, sampling, launches; and one all-reduce (two a layer).
DECODE_S = 1.5e-3
ALL_REDUCE_S = 8e-6
DECODE_HBM = 0.8  # share of the HBM bandwidth that decoding reaches


@dataclass(frozen=True)
class Rollout:
    """vLLM on the trainer's GPUs: replicas of `tp` GPUs each, and the share of a GPU's memory that one may take."""

    tp: int
    utilisation: float  # gpu_memory_utilization
    cache_tokens: int  # that a replica's KV cache holds


def weight_bytes(shape: Shape, tp: int) -> float:
    return BF16 * shape.parameters / tp


def cache_bytes_a_token(shape: Shape, tp: int) -> float:
    """On one GPU; with fewer key/value heads than ranks vLLM keeps copies."""
    return 2 * BF16 * shape.layers * shape.kv_width / min(tp, shape.kv_heads)


def resident(shape: Shape, layout: Layout, held: Memory) -> float:
    """Bytes of the trainer that stay on the GPU while vLLM generates: what is not offloaded, and its context."""
    parameters = max(stage_parameters(shape, layout, stage) for stage in range(layout.pp))
    kept = 0.0 if layout.param_offload else (BF16 + FP32) * parameters
    kept += 0.0 if layout.optimizer_offload else optimizer_bytes(shape, layout, parameters)
    return kept + held.outside


def fit(shape: Shape, layout: Layout, held: Memory, machine: Machine, tp: int, longest: int) -> Rollout | None:
    """vLLM with `tp` in what the trainer leaves, or None when its weights or the least KV cache do not fit."""
    free = machine.memory * (1 - MARGIN) - resident(shape, layout, held)
    utilisation = min(0.9, math.floor(100 * free / machine.memory) / 100)
    cache = utilisation * machine.memory - weight_bytes(shape, tp) - ENGINE_OVERHEAD
    cache_tokens = int(max(0.0, cache) / cache_bytes_a_token(shape, tp))
    push = weight_bytes(shape, tp) + ENGINE_OVERHEAD + PUSH_BUCKET
    push += BF16 * max(stage_parameters(shape, layout, stage) for stage in range(layout.pp)) * layout.param_offload
    if cache_tokens < LEAST_SEQUENCES * longest or push > free:
        return None
    return Rollout(tp, utilisation, cache_tokens)


def update_bytes(held: Memory) -> float:
    """All that is on the GPU at the peak of an update with vLLM asleep."""
    return held.gpu + ENGINE_ASLEEP


def generation_seconds(
    shape: Shape, rollout: Rollout, batch: Batch, machine: Machine, *, world: int, max_num_seqs: int = 256
) -> float:
    """Generation of the batch: each decode step reads all weights and the KV cache of what is running.

    It lasts for as many steps as the longest sequence has tokens, or longer when not all sequences run at once.
    """
    share = batch.share(max(1, world // rollout.tp))
    sequences = len(share.lengths)
    at_once = max(1, min(max_num_seqs, sequences, rollout.cache_tokens * sequences // share.tokens))
    steps = max(share.lengths[0], share.tokens / at_once)
    # The token at position i reads i positions of the cache: over a step's tokens, all pairs.
    read = weight_bytes(shape, rollout.tp) + share.pairs / steps * cache_bytes_a_token(shape, rollout.tp)
    reduces = 2 * shape.layers * ALL_REDUCE_S * (rollout.tp > 1)
    return steps * (read / (DECODE_HBM * machine.hbm) + DECODE_S + reduces)
