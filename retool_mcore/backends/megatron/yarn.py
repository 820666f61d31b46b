"""The YaRN settings that Megatron-Bridge 0.5.1 leaves empty where config.json leaves them out.

Megatron-Bridge hands on the keys of a yarn scaling that are there, and Megatron computes with None for the others: the
betas stop the model's construction, and the frequencies' range is not rounded. transformers and vLLM have defaults.
"""

from collections.abc import Mapping
from typing import Any

DEFAULTS = {  # key in rope_scaling: (Megatron's setting, the default in transformers and vLLM)
    "beta_fast": ("yarn_beta_fast", 32.0),
    "beta_slow": ("yarn_beta_slow", 1.0),
    "truncate": ("yarn_correction_range_round_to_int", True),
}


def missing_settings(scaling: Mapping[str, Any] | None, max_positions: int) -> dict[str, Any]:
    """Transformer settings that complete the yarn scaling of a model's configuration; none for other scalings.

    max_positions: max_position_embeddings, over which transformers scales where the scaling names no other length.
    """
    scaling = scaling or {}
    if (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return {}
    length = ("yarn_original_max_position_embeddings", max_positions)
    defaults = DEFAULTS | {"original_max_position_embeddings": length}
    return {name: value for key, (name, value) in defaults.items() if scaling.get(key) is None}
