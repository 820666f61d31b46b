"""Do the token limits and the step counts agree with the model and the layout? Their ranges: config/schema.py."""

from retool_mcore.errors import UserError


def check_lengths(*, max_prompt_tokens: int, max_response_tokens: int, max_positions: int) -> None:
    """All in tokens; `max_positions` is the model's max_position_embeddings. Prompt and response share the context."""
    whole = max_prompt_tokens + max_response_tokens
    if whole > max_positions:
        raise UserError(
            f"rollout.max_prompt_tokens={max_prompt_tokens} + rollout.max_response_tokens={max_response_tokens} "
            f"= {whole} exceeds the model's {max_positions} positions: lower one of them."
        )


def check_sft_length(*, max_length: int, max_positions: int) -> None:
    """In tokens, prompt and answer together."""
    if max_length > max_positions:
        raise UserError(f"train.max_length={max_length} exceeds the model's {max_positions} positions: lower it.")


def check_micro_batch(*, longest: int, micro_batch_tokens: int, cp: int = 1) -> None:
    """verl packs whole sequences of up to `longest` tokens into micro-batches and asserts that one always fits.

    `micro_batch_tokens` is of one of the `cp` context-parallel ranks that share a micro-batch.
    """
    if longest > micro_batch_tokens * cp:
        raise UserError(
            f"parallel.micro_batch_tokens={micro_batch_tokens}{'' if cp == 1 else f' on {cp} context-parallel ranks'} "
            f"is less than one longest sequence of {longest} tokens: "
            "raise it or lower the token limits."
        )


def check_engine_batch(*, longest: int, max_num_batched_tokens: int, chunked_prefill: bool) -> None:
    """Without chunked prefill vLLM must take in a whole sequence of `longest` tokens in one step."""
    if not chunked_prefill and longest > max_num_batched_tokens:
        raise UserError(
            f"parallel.rollout.max_num_batched_tokens={max_num_batched_tokens} is less than one longest sequence of "
            f"{longest} tokens: raise it or set parallel.rollout.enable_chunked_prefill=true."
        )


def check_schedule(*, steps: int, warmup_steps: int) -> None:
    """Megatron's scheduler asserts that warm-up ends before the run does, whose steps here follow from the data."""
    if warmup_steps >= steps:
        raise UserError(f"train.warmup_steps={warmup_steps} must be below the run's {steps} steps.")
