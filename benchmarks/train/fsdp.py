"""The neighbour of update.py: verl's FSDP engine with Ulysses sequence parallelism, on the same batches.

verl's packed path needs the flash-attn package. The attention kernels are in torch as well: this registers them with
transformers under a name of their own, with the all-to-all that verl wraps around flash-attn. For flash-attn's cross
entropy torch's stands in; without one verl computes log-probabilities token by token, three times as slow a step.
"""

from dataclasses import fields

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from verl.utils import torch_functional
from verl.utils.ulysses import (
    gather_heads_scatter_seq,
    gather_seq_scatter_heads,
    get_ulysses_sequence_parallel_group,
    get_ulysses_sequence_parallel_world_size,
)
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, OptimizerConfig

ATTENTION = "torch_varlen"


def register() -> None:
    """Put both in their places in this process."""
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True
    torch_functional.cross_entropy_loss = losses


def losses(logits, labels, inplace_backward=True):
    """flash_attn.ops.triton.cross_entropy.cross_entropy_loss: (losses [tokens], nothing) of logits [tokens, vocab]."""
    return cross_entropy(logits.float(), labels, reduction="none"), None


def attend(module, query, key, value, attention_mask, scaling=None, position_ids=None, **_):
    """Causal attention over packed sequences: [1, heads, tokens / sp, size] in, [1, tokens / sp, heads, size] out.

    `position_ids` [1, tokens / sp] begin at 0 with every sequence.
    """
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    size = get_ulysses_sequence_parallel_world_size()
    if size > 1:
        query, key, value = (gather_seq_scatter_heads(t, seq_dim=1, head_dim=2) for t in (query, key, value))
        shares = [torch.empty_like(position_ids) for _ in range(size)]
        torch.distributed.all_gather(shares, position_ids.contiguous(), get_ulysses_sequence_parallel_group())
        position_ids = torch.cat(shares, dim=-1)
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    bounds = torch.cat([starts, starts.new_tensor([position_ids.numel()])]).to(torch.int32)
    out = packed(query[0], key[0], value[0], bounds, scaling)[None]
    if size > 1:
        out = gather_heads_scatter_seq(out, seq_dim=1, head_dim=2)
    return out, None


def packed(query, key, value, bounds, scaling):
    """[tokens, heads, size] each; `bounds` int32 [sequences + 1]."""
    if query.is_cuda:
        longest = int(bounds.diff().max())
        found = torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, longest, longest, 0.0, True, False, scale=scaling
        )
        return found[0]
    rows = []
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        q, k, v = (tensor[first:last].transpose(0, 1) for tensor in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        rows.append(out.transpose(0, 1))
    return torch.cat(rows)


def configs(verl, run: dict, layout: dict) -> tuple[FSDPEngineConfig, FSDPOptimizerConfig]:
    """Engine and optimizer of FSDP2, with the optimizer's settings of `verl`, whose model changes. `layout`: {sp}."""
    actor, model = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.model
    model.override_config = {"attn_implementation": ATTENTION}
    model.enable_gradient_checkpointing = run["settings"].get("gradient_checkpointing", True)
    same = {field.name for field in fields(OptimizerConfig)} & {"lr", "weight_decay", "betas", "clip_grad"}
    return (
        FSDPEngineConfig(strategy="fsdp2", ulysses_sequence_parallel_size=layout["sp"]),
        FSDPOptimizerConfig(**{name: actor.optim[name] for name in same}, total_training_steps=1000),
    )
