"""The sampling parameters of one turn, the same for training, validation, evaluation and replay."""

from collections.abc import Mapping
from typing import Any

from retool_mcore.data.formats import Format


def turn_params(sampling: Mapping[str, Any], fmt: Format, *, max_tokens: int, seed: int) -> dict[str, Any]:
    """Return vLLM's parameters for one turn of an episode in format `fmt`, as a new dict.

    sampling: how tokens are drawn (temperature, top_p, top_k, ...), which differs between training and evaluation.
    Where a turn ends does not: at the format's stop strings, and at the token with which the chat template ends a turn.
    In base models that token is not the tokenizer's eos_token, so an engine does not stop at it unless it is named.
    """
    return {
        **sampling,
        "max_tokens": max_tokens,
        "seed": seed,
        "stop": list(fmt.stop),
        # The engine must not take `</code>` back from the tokens, and must look for it where the tag is special.
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "stop_token_ids": [fmt.eos_id],
    }
