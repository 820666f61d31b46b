"""Both ends of the weight push that vLLM is imported for: its socket, and what vLLM's parameters hold after it.

Loaded by vLLM in every worker (`worker_extension_cls`), where it joins verl's own extension. vLLM fuses q, k and v, and
gate and up, and slices over its tensor-parallel ranks; its layers know how, so each parameter is cut back into slices
of the tensors that a Hugging Face checkpoint names, without the loaders that put them there.

Adapted places (vLLM 0.24 and 0.28): the attributes of vllm/model_executor/layers/linear.py and
vocab_parallel_embedding.py, and of fused_moe/, that say what a rank holds. Not covered: experts that the engine spreads
whole over its ranks, and what it stores in a kernel's own order, as FP8 on other GPUs than Hopper's.
"""

import json
from collections.abc import Iterator
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from retool_mcore.backends.verl import push_socket
from retool_mcore.backends.verl.fingerprint import (
    FP8,
    FP8_BLOCK,
    SCALES,
    STOPS,
    Block,
    Whole,
    difference,
    fingerprint,
    tied_difference,
    whole,
)

PLAIN_EXPERTS = ("CPU", "TRITON")  # backends that keep a checkpoint's own order


class OwnSocketAdapter(ServerAdapter):
    """verl's sending side of a push, on a socket of this run alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.zmq_handle = push_socket.own(self.zmq_handle)


class VerifyingExtension(vLLMColocateWorkerExtension):
    """verl's worker extension that can compare what it holds with what the trainer exported."""

    def _get_zmq_handle(self) -> str:
        return push_socket.own(super()._get_zmq_handle())

    def verify_weights(self, exported: str, dtype: str) -> None:
        """exported: JSON {name: [elements, fingerprint]} of tensors in `dtype`, a torch name. Raises RuntimeError with
        one sentence, on every rank, when the engine holds something else."""
        from vllm.distributed.parallel_state import get_world_group

        model = self.model_runner.get_model()
        own = fingerprints(model, getattr(torch, dtype))
        group = get_world_group()
        ranks: list[Any] = [None] * group.world_size
        torch.distributed.all_gather_object(ranks, own, group=group.cpu_group)
        expected = {name: Whole(*value) for name, value in json.loads(exported).items()}
        mismatch = compare(model, expected, ranks)
        if mismatch is not None:
            raise RuntimeError(f"{STOPS}: {mismatch}.")


def compare(model: torch.nn.Module, exported: dict[str, Whole], ranks: list[dict[str, list[Block]]]) -> str | None:
    """The first thing in which the ranks' `fingerprints` are not the exported tensors, in words; None when equal."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    return (tied_difference if tied else difference)(exported, *whole(ranks))


def fingerprints(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, list[Block]]:
    """This rank's blocks of every tensor of a Hugging Face checkpoint, as `dtype` or, if quantised, as it is."""
    places, shares = [], []
    for name, piece, row, column in slices(model):
        places.append((name, row, column, len(piece), piece.numel() // max(len(piece), 1)))
        shares.append(fingerprint(piece if name.endswith((FP8, SCALES)) else piece.to(dtype), row, column))
    values = torch.stack(shares).tolist()  # one wait for the device
    blocks: dict[str, list[Block]] = {}
    for (name, row, column, rows, columns), value in zip(places, values, strict=True):
        blocks.setdefault(name, []).append(Block(row, column, rows, columns, value))
    return blocks


def slices(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """(checkpoint name, a view of this rank's slice, its first row, its first column) of every parameter."""
    packed = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        parent, _, last = path.rpartition(".")
        for kind, parameter in module.named_parameters(recurse=False):
            ending = kind + FP8 if parameter.dtype == torch.float8_e4m3fn else kind
            names = [f"{parent}.{part}.{ending}" for part in packed.get(last, [])] or [f"{path}.{ending}"]
            # As many rows of scales as the matrix has: they are cut where it is.
            held = parameter.data.repeat_interleave(FP8_BLOCK, 0) if kind.endswith(SCALES) else parameter.data
            yield from _layer_slices(module, kind, held, names)


def _layer_slices(module, kind: str, held: torch.Tensor, names: list[str]) -> Iterator[tuple]:
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    if kind in ("w13_weight", "w2_weight"):
        yield from _expert_slices(module, kind, held, names[0])
        return
    rank = getattr(module, "tp_rank", 0)
    if isinstance(module, linear.QKVParallelLinear):
        shared = rank // module.num_kv_head_replicas
        parts = [
            (module.num_heads * module.head_size, rank),
            (module.num_kv_heads * module.head_size, shared),
            (module.num_kv_heads * module.v_head_size, shared),
        ]
    elif isinstance(module, linear.MergedColumnParallelLinear):
        parts = [(size // module.tp_size, rank) for size in module.output_sizes]
    elif isinstance(module, linear.ColumnParallelLinear):
        parts = [(len(held), rank)]
    elif isinstance(module, linear.RowParallelLinear) and kind != "bias":
        yield names[0], held, 0, rank * held.shape[1]
        return
    elif isinstance(module, VocabParallelEmbedding):
        shard = module.shard_indices
        first, end = shard.org_vocab_start_index, shard.org_vocab_end_index
        yield names[0], held[: end - first], first, 0
        return
    else:
        parts = [(len(held), 0)]
    if len(parts) != len(names):
        raise RuntimeError(f"{STOPS}: a layer with {names} holds {len(parts)} tensors, so it cannot be verified.")
    start = 0
    for name, (rows, place) in zip(names, parts, strict=True):
        yield name, held[start : start + rows], place * rows, 0
        start += rows


def _expert_slices(module, kind: str, held: torch.Tensor, name: str) -> Iterator[tuple]:
    """`held`: (experts, rows, columns), of each expert this rank's share; gate above up."""
    backend = getattr(getattr(module.quant_method, "unquantized_backend", None), "name", "unknown")
    if module.expert_map is not None or backend not in PLAIN_EXPERTS:
        raise RuntimeError(
            f"{STOPS}: experts that the engine spreads over its ranks, or keeps for the backend {backend}, cannot be "
            f"verified; known are {' and '.join(PLAIN_EXPERTS)} under tensor parallelism."
        )
    rank, path = module.moe_config.tp_rank, name[: name.index(".experts.") + len(".experts")]
    for expert, matrix in enumerate(held):
        if kind == "w2_weight":
            yield f"{path}.{expert}.down_proj.weight", matrix, 0, rank * matrix.shape[1]
            continue
        rows = len(matrix) // 2
        for part, piece in zip(("gate_proj", "up_proj"), matrix.split(rows), strict=True):
            yield f"{path}.{expert}.{part}.weight", piece, rank * rows, 0
