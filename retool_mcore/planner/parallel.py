"""Does the model fit the parallel layout, the batch the data-parallel ranks, and a sequence the token limits?

Each rule is one that Megatron-core, vLLM or verl asserts minutes later, in a worker, in its own words."""

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import Model, Shape


def check_tensor_parallel(model: Model | Shape, *, size: int, key: str) -> None:
    """Each of `size` ranks gets whole attention heads and an equal part of the vocabulary; `key`: the config key."""
    if model.heads % size:
        raise UserError(
            f"{key}={size} does not divide the model's {model.heads} attention heads: choose one of "
            f"{divisors(model.heads)}."
        )
    # With fewer key/value heads than ranks, Megatron and vLLM replicate them, which needs a whole number of copies.
    if model.kv_heads % size and size % model.kv_heads:
        raise UserError(
            f"{key}={size} neither divides nor is a multiple of the model's {model.kv_heads} key/value heads: choose "
            f"one of {divisors(model.heads, model.kv_heads)}."
        )
    if model.vocab % size:
        raise UserError(f"{key}={size} does not divide the model's vocabulary of {model.vocab} tokens.")


def check_dtype(*, device: str, dtype: str) -> None:
    """`dtype`: of the policy in trainer and engine. float32 is the CPU's only."""
    allowed = ("bfloat16", "float16") if device == "cuda" else ("float32", "bfloat16")
    if dtype not in allowed:
        raise UserError(
            f"model.dtype={dtype} does not train on parallel.device={device}: choose one of {', '.join(allowed)}."
        )


def check_layout(
    model: Model | Shape,
    *,
    nodes: int,
    gpus_per_node: int,
    tp: int,
    pp: int,
    sequence_parallel: bool,
    cp: int = 1,
    vpp: int = 1,
    ep: int = 1,
) -> int:
    """Trainer side; returns the data-parallel size, nodes * gpus_per_node / (tp * pp * cp)."""
    check_tensor_parallel(model, size=tp, key="parallel.tp")
    if model.layers % pp:
        raise UserError(
            f"parallel.pp={pp} does not divide the model's {model.layers} layers: choose one of "
            f"{divisors(model.layers)}."
        )
    key = "parallel.megatron.virtual_pipeline_model_parallel_size"
    if vpp < 1 or model.layers % (pp * vpp):
        raise UserError(f"{key}={vpp} does not cut the {model.layers // pp} layers of a pipeline stage evenly.")
    if vpp > 1 and pp == 1:
        raise UserError(f"{key}={vpp} needs parallel.pp > 1: set it to null or raise parallel.pp.")
    world, dp = nodes * gpus_per_node, data_parallel(nodes, gpus_per_node, tp=tp, pp=pp, cp=cp)
    if sequence_parallel and tp == 1:
        raise UserError("parallel.sequence_parallel=true needs parallel.tp > 1: set it to false or raise parallel.tp.")
    if isinstance(model, Shape) and model.lora % tp:
        raise UserError(f"parallel.tp={tp} does not divide the adapters' rank model.lora.rank={model.lora}.")
    if ep < 1 or (ep > 1 and (not model.experts or model.experts % ep or world // pp % ep)):
        raise UserError(
            f"parallel.ep={ep} must divide the model's {model.experts} experts a layer and the {world // pp} devices "
            "of a pipeline stage: set it to 1, or to a number that divides both."
        )
    if model.experts and tp > 1 and not sequence_parallel:
        raise UserError("A model of experts with parallel.tp > 1 needs parallel.sequence_parallel=true.")
    return dp


def data_parallel(nodes: int, gpus_per_node: int, *, tp: int, pp: int, cp: int = 1) -> int:
    """The data-parallel ranks, nodes * gpus_per_node / (tp * pp * cp). Raises UserError where that is no number."""
    world = nodes * gpus_per_node
    if cp < 1 or world % (tp * pp * cp):
        context = "" if cp == 1 else f" x parallel.megatron.context_parallel_size={cp}"
        raise UserError(
            f"parallel.tp={tp} x parallel.pp={pp}{context} = {tp * pp * cp} does not divide the {world} devices "
            f"(parallel.nodes={nodes} x parallel.gpus_per_node={gpus_per_node})."
        )
    return world // (tp * pp * cp)


def check_attention(backend: str, *, capability: float | None, installed: bool | None) -> None:
    """Is there a kernel for packed sequences? Transformer Engine 2.16 asks cuDNN for one from 9.0 on only
    (common/fused_attn/fused_attn.cpp), though cuDNN 9.18.1 has it on A100, and else takes flash-attn 2.1.1 to 2.8.3.

    backend: attention_backend of parallel.megatron.override_transformer_config; capability: compute capability of the
    GPUs, None where it is not known; installed: whether flash-attn is, None where the GPUs are elsewhere.
    """
    key = "parallel.megatron.override_transformer_config.attention_backend"
    get = "`pip install --no-build-isolation flash-attn==2.8.3`"
    if backend == "fused" and capability is not None and capability < 9:
        raise UserError(
            f"{key}=fused has no kernel for packed sequences on GPUs of compute capability {capability:g} (A100: 8): "
            f"set it to flash, as parallel=2x8-a100 does, which needs flash-attn ({get})."
        )
    if backend == "flash" and installed is False:
        raise UserError(f"{key}=flash needs flash-attn, which is not installed: {get}, or set it to fused on H100.")


def check_rollout_layout(model: Model | Shape, *, gpus_per_node: int, rollout_tp: int) -> None:
    """Engine side: a vLLM replica stays inside one node."""
    check_tensor_parallel(model, size=rollout_tp, key="parallel.rollout_tp")
    if gpus_per_node % rollout_tp:
        raise UserError(
            f"parallel.rollout_tp={rollout_tp} does not divide parallel.gpus_per_node={gpus_per_node}: an engine "
            "replica must fit in one node."
        )


def check_sft_batch(*, batch: int, dp: int) -> None:
    """`batch` counts sequences."""
    if batch % dp:
        raise UserError(f"train.batch={batch} sequences is not a multiple of the {dp} data-parallel ranks.")


def check_rl_batch(*, batch: int, mini_batch: int, n: int, dp: int) -> None:
    """`batch` and `mini_batch` count prompts, each sampled `n` times; verl splits trajectories over `dp` ranks."""
    for key, prompts in (("train.batch", batch), ("train.mini_batch", mini_batch)):
        if prompts * n % dp:
            raise UserError(
                f"{key}={prompts} prompts x train.n={n} = {prompts * n} trajectories, which is not a multiple of the "
                f"{dp} data-parallel ranks."
            )


def divisors(*numbers: int) -> str:
    """Common divisors of `numbers`, for a message."""
    return ", ".join(str(size) for size in range(1, min(numbers) + 1) if all(number % size == 0 for number in numbers))


def check_lengths(*, max_prompt_tokens: int, max_response_tokens: int, max_positions: int) -> None:
    """All in tokens; `max_positions` is the model's max_position_embeddings. Prompt and response share the context."""
    whole = max_prompt_tokens + max_response_tokens
    if whole > max_positions:
        raise UserError(
            f"rollout.max_prompt_tokens={max_prompt_tokens} + rollout.max_response_tokens={max_response_tokens} = "
            f"{whole} exceeds the model's {max_positions} positions: lower one of them."
        )


def check_sft_length(*, max_length: int, max_positions: int) -> None:
    """Check the SFT length, in tokens, prompt and answer together."""
    if max_length > max_positions:
        raise UserError(f"train.max_length={max_length} exceeds the model's {max_positions} positions: lower it.")


def check_micro_batch(*, longest: int, micro_batch_tokens: int, cp: int = 1) -> None:
    """verl packs whole sequences of up to `longest` tokens into micro-batches and asserts that one always fits.

    `micro_batch_tokens` is of one of the `cp` context-parallel ranks that share a micro-batch.
    """
    if longest > micro_batch_tokens * cp:
        ranks = "" if cp == 1 else f" on {cp} context-parallel ranks"
        raise UserError(
            f"parallel.micro_batch_tokens={micro_batch_tokens}{ranks} is less than one longest sequence of {longest} "
            "tokens: raise it or lower the token limits."
        )


def check_engine_batch(*, longest: int, max_num_batched_tokens: int, chunked_prefill: bool) -> None:
    """Without chunked prefill vLLM must take in a whole sequence of `longest` tokens in one step."""
    if not chunked_prefill and longest > max_num_batched_tokens:
        raise UserError(
            f"parallel.rollout.max_num_batched_tokens={max_num_batched_tokens} is less than one longest sequence of "
            f"{longest} tokens: raise it or set parallel.rollout.enable_chunked_prefill=true."
        )


def check_weight_bucket(megabytes: int, *, largest_bytes: int) -> None:
    """verl asserts that the bucket of a weight push holds each tensor; `largest_bytes`: of the policy's largest."""
    if largest_bytes > megabytes * 2**20:
        needed = -(-largest_bytes // 2**20)
        raise UserError(
            f"parallel.rollout.weight_bucket_mb={megabytes} is less than the {needed} MB of the policy's largest "
            f"tensor, which a weight push has to hold: set it to {needed} or more."
        )


def check_schedule(*, steps: int, warmup_steps: int) -> None:
    """Megatron's scheduler asserts that warm-up ends before the run does, whose steps here follow from the data."""
    if warmup_steps >= steps:
        raise UserError(f"train.warmup_steps={warmup_steps} must be below the run's {steps} steps.")
