"""mbridge's bridges of families that it lacks or builds wrongly (mbridge 0.15.1: vanilla_mbridge=true, so the CPU).

- llama: mbridge/models/llama.py takes any scaling of the rotary embedding for a linear one, and with transformers 5 for
  none: Llama 3.1's logits would be wrong, in silence.
- mistral: without a sliding window it is Llama's layer; mbridge has none.
"""

from mbridge.core import register_model
from mbridge.models.llama import LLaMABridge


@register_model(["llama", "mistral"])
class LlamaBridge(LLaMABridge):
    """Llama 2, 3 and 3.1, Mistral; what else a scaling may say is refused by preflight/model.py."""

    def _get_gptmodel_args(self) -> dict:
        scaling = self.hf_config.rope_scaling or {}
        scaled = scaling.get("rope_type") == "llama3"
        return {
            "vocab_size": self.hf_config.vocab_size,
            "max_sequence_length": self.hf_config.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_base": self.hf_config.rope_theta,
            "rope_scaling": scaled,
            **({"rope_scaling_factor": scaling["factor"]} if scaled else {}),
        }
