"""Bytes that one GPU of a layout holds while it trains, part by part.

What each part is was read in the code that allocates it, and Korthikanti et al. 2022 (arXiv 2205.05198, sections 4 and
5) is where the method comes from; their 34 s b h a layer is of a GPT with dropout and GELU. Here: Qwen2.5's layer as
Transformer Engine's modules keep it (LayerNormLinear keeps its input and the normalised input; fused attention keeps q,
k, v, the output and a row statistic; SwiGLU unfused keeps five tensors of the MLP's width, fused three), verl's
gradient buffer (float32: MegatronEngine._resolve_override_ddp_config) and verl's log-probabilities of whole logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from retool_mcore.errors import UserError
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.shape import Shape

GIB = 2**30

BF16, FP32 = 2, 4
ADAM = 3 * FP32  # main parameter and two moments; megatron/core/optimizer/distrib_optimizer.py shards them over DP x CP
LOGIT_PEAK = 2 * FP32  # the softmax, and the gradient that the division by the temperature makes of it
LOGIT_PEAK_IN_PLACE = FP32 + BF16  # fused_log_probs.py: the gradient over the logits, and its bf16 copy
LOGIT_PEAK_HALF = BF16  # the same without the float32 copy: the logits, later the gradient over them
FUSED_LOGIT_COLUMNS = 9504  # d_logits at once in verl's fused kernel (verl/utils/kernel/kernels.py)

# Bytes of workspaces of cuBLAS (32 MiB on Hopper) and Transformer Engine, and of tensors too small to list.
WORKSPACES = 0.25 * GIB
# Bytes outside torch's allocator: the CUDA context with its modules, and NCCL's channels for each communicator. Not
# measured yet; a CUDA context alone is 0.5 GB on H100, and NCCL takes 0.5 to 1 GB for a handful of communicators.
CONTEXT = 1.0 * GIB
NCCL_GROUP = 0.35 * GIB
# Bytes that vLLM keeps asleep: its process holds a context, the private pools of CUDA graphs and its own NCCL.
ENGINE_ASLEEP = 1.6 * GIB
# What torch's allocator holds beyond what is allocated, as a share; expandable segments keep it small.
FRAGMENTATION = 0.03


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, that of the pipeline stage with the highest peak.

    `parts` sum up to `peak`, which is what torch.cuda.max_memory_allocated reports after an update; `outside` is
    outside torch's allocator.
    """

    parts: dict[str, float]
    stage: int  # 0-based
    outside: float

    @cached_property
    def peak(self) -> float:
        return sum(self.parts.values())

    @property
    def gpu(self) -> float:
        """All that must fit on the GPU: torch's reserve for the peak and the memory outside it."""
        return self.peak * (1 + FRAGMENTATION) + self.outside


def stage_parameters(shape: Shape, layout: Layout, stage: int) -> float:
    """Parameters of one tensor-parallel rank of a pipeline stage.

    Norms are whole on each rank; key/value heads too few for the ranks are not copied by Megatron (the weight is cut
    evenly, the activations are gathered).
    """
    norms = 2 * shape.hidden + 2 * shape.head_dim * shape.qk_norm
    whole = norms + shape.hidden * shape.experts  # the router, too
    spread = expert_parameters(shape, layout)
    a_layer = (shape.layer_parameters - whole - shape.experts * shape.mlp) / layout.tp + whole
    total = shape.layers / layout.pp * a_layer + spread
    embedding = shape.embedding_parameters / layout.tp
    last = stage == layout.pp - 1
    if stage == 0:
        total += embedding
    if last:
        total += shape.hidden + (0 if shape.tied and layout.pp == 1 else embedding)
    return total


def expert_parameters(shape: Shape, layout: Layout) -> float:
    """Return the parameters of experts among a rank's, which expert-parallel ranks share and tensor-parallel ranks do
    not."""
    return shape.layers / layout.pp * shape.experts / layout.ep * shape.mlp


def trained_parameters(shape: Shape, layout: Layout, stage: int) -> float:
    """Return the parameters of a rank that have gradients: all, or with LoRA the adapters', each cut by TP."""
    adapters = shape.layers / layout.pp * shape.adapter_parameters / layout.tp
    return adapters if shape.lora else stage_parameters(shape, layout, stage)


def optimizer_bytes(shape: Shape, layout: Layout, parameters: float) -> float:
    """Adam's of a rank's `parameters`, sharded over the ranks that hold the same ones."""
    experts = expert_parameters(shape, layout)
    copies = layout.dp * layout.cp
    return ADAM * ((parameters - experts) / copies + experts / (copies * layout.tp / layout.ep))


def models(shape: Shape, layout: Layout, stage: int) -> dict[str, dict[str, float]]:
    """Bytes of each model's weights, gradients and optimizer on a rank of a pipeline stage. Not to be changed."""
    return _models(shape, layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, stage)


@lru_cache(maxsize=64)  # a search asks again and again: micro-batches and switches change none of them
def _models(shape: Shape, tp: int, pp: int, cp: int, dp: int, ep: int, stage: int) -> dict[str, dict[str, float]]:
    layout = Layout(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep)
    policy, adapted = stage_parameters(shape, layout, stage), trained_parameters(shape, layout, stage)
    output = shape.embedding_parameters / layout.tp
    has_output = stage == layout.pp - 1 and (layout.pp > 1 or not shape.tied)
    critic = policy - output * has_output  # one value a token instead of the vocabulary's logits

    def trained(parameters: float, frozen: float = 0.0) -> dict[str, float]:
        optimizer = optimizer_bytes(shape, layout, parameters)
        return {"weights": BF16 * (parameters + frozen), "gradients": FP32 * parameters, "optimizer": optimizer}

    # The reference of adapters is the policy without them.
    frozen, reference = (policy, 0.0) if shape.lora else (0.0, policy)
    return {"policy": trained(adapted, frozen), "critic": trained(critic), "reference": {"weights": BF16 * reference}}


def staying(parts: Mapping[str, float], layout: Layout) -> float:
    """Return the bytes of a model that stay on the GPU while another one is at work."""
    away = {"weights": layout.param_offload, "gradients": layout.param_offload, "optimizer": layout.optimizer_offload}
    return sum(size for part, size in parts.items() if not away[part])


def layer_activations(shape: Shape, layout: Layout, recompute: str = "") -> float:
    """Bytes a token of a rank's micro-batch that one layer keeps for its backward; `recompute` for the layout's own."""
    tp = layout.tp
    sharded = tp if layout.shards_sequence else 1
    hidden, q, kv, ffn = BF16 * shape.hidden, BF16 * shape.q_width, BF16 * shape.kv_width, BF16 * shape.ffn
    kv_ranks = min(tp, shape.kv_heads)
    # Without fused rotary embedding each layer keeps its own cosine and sine, for q and for k.
    rope = 0 if layout.fused_rope else 2 * 2 * BF16 * shape.head_dim
    attention = 2 * hidden / sharded + (2 * q / tp + 2 * kv / kv_ranks) + FP32 * shape.heads / tp + rope
    mlp_width = 3 if layout.fused_swiglu else 5
    mlp = 2 * hidden / sharded + mlp_width * ffn / tp
    if shape.experts:
        # Evenly dealt: each rank works at its own tokens' number, `active` times. A copy is kept as it was sent, as it
        # was sorted by expert, and as it comes back. By Megatron's code (token_dispatcher.py), not measured.
        routed = FP32 * shape.experts + shape.active * (3 * hidden + mlp_width * ffn)
        mlp = (2 * hidden + routed) / sharded
    match recompute or layout.recompute:
        case "none":
            return attention + mlp
        case "selective":
            # The checkpoint keeps its inputs; v is a view into the whole projection, which therefore stays alive.
            return attention - FP32 * shape.heads / tp + (q / tp + kv / kv_ranks) + mlp
        case "mlp":
            return attention + hidden / sharded
        case "full":
            return hidden / sharded
    raise ValueError(recompute or layout.recompute)


def layers_in_flight(shape: Shape, layout: Layout, stage: int, micro_batches: int) -> float:
    """How many layer-activations of a micro-batch a stage holds at its fullest, in 1F1B.

    Narayanan et al. 2021 (arXiv 2104.04473, sections 2.2.1 and 2.2.2): stage i of p keeps p - i micro-batches; with v
    interleaved chunks it has begun 2 (p - i - 1) + (v - 1) p + 1 chunks of L / (p v) layers before its first backward.
    """
    layers = shape.layers / layout.pp
    if layout.vpp == 1:
        return layers * min(layout.pp - stage, micro_batches)
    chunks = 2 * (layout.pp - stage - 1) + (layout.vpp - 1) * layout.pp + 1
    return layers / layout.vpp * min(chunks, micro_batches * layout.vpp)


def logits(shape: Shape, layout: Layout, tokens: float) -> float:
    """Bytes of the last stage in addition to its layers' activations when the loss's backward begins."""
    columns = shape.vocab / layout.tp
    hidden = BF16 * shape.hidden * tokens
    if layout.fused_log_probs == "in_place":
        return (LOGIT_PEAK_HALF if layout.half_logits else LOGIT_PEAK_IN_PLACE) * tokens * columns + hidden
    if layout.fused_log_probs:
        weight_gradient = BF16 * shape.hidden * columns
        return 2 * hidden + weight_gradient + BF16 * tokens * min(columns, FUSED_LOGIT_COLUMNS)
    return LOGIT_PEAK * tokens * columns + hidden


def layer_backward(shape: Shape, layout: Layout) -> float:
    """Bytes a token that one layer's backward needs on top of what was kept: recomputed activations and gradients."""
    live = 2 * BF16 * shape.hidden + 3 * BF16 * shape.ffn * (shape.active or 1) / layout.tp
    if layout.recompute == "full":
        return live + layer_activations(shape, layout, "none")
    if layout.recompute == "mlp":
        return live + (layer_activations(shape, layout, "none") - layer_activations(shape, layout))
    return live


def memory(shape: Shape, layout: Layout, batch: Batch) -> Memory:
    """Compute the memory of the fullest rank at the peak of an update (forward, backward, optimizer), all of it on the
    GPU.

    Raises UserError when the layout does not divide the model or a micro-batch cannot take the longest sequence.
    """
    if shape.layers % (layout.pp * layout.vpp):
        raise UserError(f"pp={layout.pp} x vpp={layout.vpp} does not divide the model's {shape.layers} layers.")
    return max((_stage(shape, layout, batch, stage) for stage in layout.stages), key=lambda found: found.peak)


def _stage(shape: Shape, layout: Layout, batch: Batch, stage: int) -> Memory:
    micro = batch.micro_batches(layout)
    tokens = micro.largest / layout.cp
    kept = layers_in_flight(shape, layout, stage, micro.count) * layer_activations(shape, layout) * tokens
    sharded = layout.tp if layout.shards_sequence else 1
    in_flight = min(layout.pp - stage, micro.count)
    ends = 0.0
    if stage == 0:
        ends += in_flight * BF16 * shape.hidden * tokens / sharded  # the embedding's output
    last = stage == layout.pp - 1
    if last:
        ends += 2 * BF16 * shape.hidden * tokens / sharded  # the last norm's input and output
    backward = layer_backward(shape, layout) * tokens
    peak_of_loss = logits(shape, layout, tokens) if last else 0.0
    gathered = BF16 * shape.hidden * tokens if layout.shards_sequence else 0.0  # Megatron's buffer for all-gathers
    parts = models(shape, layout, stage)["policy"] | {
        "activations": kept + ends,
        "logits": peak_of_loss if peak_of_loss >= backward else 0.0,
        "backward": backward if peak_of_loss < backward else 0.0,
        "buffers": gathered + WORKSPACES,
    }
    return Memory(parts, stage, outside(layout))


def outside(layout: Layout) -> float:
    """Bytes on the GPU outside torch's allocator: the CUDA context and one NCCL communicator a group."""
    groups = sum(size > 1 for size in (layout.tp, layout.pp, layout.cp, layout.dp)) + (layout.world > 1)
    return CONTEXT + groups * NCCL_GROUP
