"""The soft overlong punishment that DAPO (arXiv 2503.14476) adds to an outcome reward."""

from retool_mcore.errors import UserError


def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """Length penalty in [-1, 0], to be added to the outcome reward (arXiv 2503.14476, Eq. 13). All lengths in tokens.

        0                                  if length <= max_length - cache
        ((max_length - cache) - length) / cache   if max_length - cache < length <= max_length
        -1                                 if length > max_length

    The paper uses max_length = 20480 and cache = 4096: 16384 tokens cost nothing, 18432 cost 0.5, 20480 cost 1.
    Raises ValueError unless 0 < cache <= max_length and length >= 0.
    """
    if not 0 < cache <= max_length or length < 0:
        raise ValueError(f"need 0 < cache <= max_length and length >= 0, got {cache=}, {max_length=}, {length=}")
    return max(-1.0, min(0.0, (max_length - cache - length) / cache))


def check_overlong(cache: int, max_length: int) -> None:
    """Refuse a `cache` in tokens, 0 for none, that `soft_overlong` cannot use with `max_length`. Raises UserError."""
    if cache > max_length:
        raise UserError(
            f"recipe.overlong_buffer={cache} exceeds rollout.max_response_tokens={max_length}: the punishment grows "
            "over the last tokens before the limit, so lower it, raise the limit, or set recipe.overlong_buffer=0 for "
            "none."
        )
