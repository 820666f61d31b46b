"""Do the token limits and the step counts agree with each other and with the model?"""

from retool_mcore.errors import UserError


def check_positive(values: dict[str, int]) -> None:
    """Every value is 1 or more; keys are the config keys, for the message."""
    for key, value in values.items():
        if value < 1:
            raise UserError(f"{key}={value}: expected 1 or more.")


def check_lengths(
    *,
    max_prompt_tokens: int,
    max_response_tokens: int,
    max_observation_tokens: int,
    max_turn_tokens: int,
    max_positions: int,
) -> None:
    """All in tokens; `max_positions` is the model's max_position_embeddings. Prompt and response share the context."""
    check_positive(
        {
            "rollout.max_prompt_tokens": max_prompt_tokens,
            "rollout.max_response_tokens": max_response_tokens,
            "rollout.max_observation_tokens": max_observation_tokens,
            "rollout.max_turn_tokens": max_turn_tokens,
        }
    )
    whole = max_prompt_tokens + max_response_tokens
    if whole > max_positions:
        raise UserError(
            f"rollout.max_prompt_tokens={max_prompt_tokens} + rollout.max_response_tokens={max_response_tokens} "
            f"= {whole} exceeds the model's {max_positions} positions: lower one of them."
        )
    if max_observation_tokens >= max_response_tokens:
        raise UserError(
            f"rollout.max_observation_tokens={max_observation_tokens} must be below "
            f"rollout.max_response_tokens={max_response_tokens}: one observation would fill the whole response."
        )
    if max_turn_tokens > max_response_tokens:
        raise UserError(
            f"rollout.max_turn_tokens={max_turn_tokens} exceeds "
            f"rollout.max_response_tokens={max_response_tokens}: lower it."
        )


def check_sft_length(*, max_length: int, max_positions: int) -> None:
    """In tokens, prompt and answer together."""
    check_positive({"train.max_length": max_length})
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


def check_kept(*, keep_checkpoints: int | None, keep_best: str | None, best_is: str, eval_every: int) -> None:
    """At least one checkpoint stays, and there is validation where it decides which is the best."""
    if not isinstance(keep_checkpoints, int) or keep_checkpoints < 1:
        raise UserError(f"train.keep_checkpoints={keep_checkpoints}: expected 1 or more.")
    if best_is not in ("highest", "lowest"):
        raise UserError(f"train.best_is={best_is}: expected highest or lowest.")
    if keep_best is not None and keep_best.startswith("val") and eval_every < 1:
        raise UserError(
            f"train.keep_best={keep_best} is a metric of the validation, which train.eval_every={eval_every} turns "
            "off: set one of the two; train.keep_best=null keeps no best."
        )


def check_schedule(*, steps: int, warmup_steps: int) -> None:
    """Megatron's scheduler asserts that warm-up ends before the run does."""
    check_positive({"train.steps": steps})
    if not 0 <= warmup_steps < steps:
        raise UserError(f"train.warmup_steps={warmup_steps} must be at least 0 and below the run's {steps} steps.")
