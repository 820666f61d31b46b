"""verl's Megatron engine with two switches of ours, in `parallel.megatron.override_mcore_model_config`.

- `init: random`: Megatron's own seeded initialisation stays, no checkpoint is read; the model's folder needs config and
  tokenizer only. Two layouts of one seed hold different weights: Megatron draws each rank's part by itself.
- `fused_log_probs: true`: log-probabilities and entropies by train/fused_log_probs.py (CUDA only).

verl 0.9.1 has an option for neither (workers/engine/megatron/transformer_impl.py:500 always loads). `use` puts the
class where verl looks engines up; with both switches off it is verl's.
"""

from types import SimpleNamespace

import torch
from megatron.core import parallel_state
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead

INITS = ("checkpoint", "random")


class Engine(MegatronEngineWithLMHead):
    """Methods that are overridden: verl/workers/engine/megatron/transformer_impl.py, release 0.9.1."""

    def _build_tf_config(self):
        super()._build_tf_config()
        init = self.engine_config.override_mcore_model_config.get("init", "checkpoint")
        if init not in INITS:
            raise ValueError(f"init is {init!r}, expected one of {', '.join(INITS)}")
        self._load = init == "checkpoint"

    def _build_megatron_module(self):
        if self._load:
            return super()._build_megatron_module()
        if torch.distributed.get_rank() == 0:
            print("The policy's weights are random (model.init=random): no checkpoint is read.")
        bridge = self.bridge
        self.bridge = _WithoutLoading(bridge)
        try:
            return super()._build_megatron_module()
        finally:
            self.bridge = bridge

    def _lm_head_logits_processor(self, logits, label, temperature, **options):
        wanted = self.engine_config.override_mcore_model_config.get("fused_log_probs", False)
        special = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
        if not wanted or any(options[name] for name in special):
            return super()._lm_head_logits_processor(logits, label, temperature, **options)
        from retool_mcore.train import fused_log_probs

        found, entropy = fused_log_probs.log_probs(
            logits,
            label,
            temperature.clamp(min=1e-8),  # as verl does where a token is padding
            entropy=options["calculate_entropy"],
            group=parallel_state.get_tensor_model_parallel_group(),
        )
        return {"log_probs": found} | ({} if entropy is None else {"entropy": entropy})


class _WithoutLoading(SimpleNamespace):
    """A bridge (Megatron-Bridge's or mbridge's) whose two loading calls do nothing."""

    def __init__(self, bridge):
        super().__init__(bridge=bridge)

    def load_weights(self, *args, **kwargs):
        pass

    load_hf_weights = load_weights

    def __getattr__(self, name):
        return getattr(self.bridge, name)


def use() -> None:
    """Make verl build this engine wherever it would build its own Megatron engine, in this process."""
    EngineRegistry._engines["language_model"]["megatron"]["cuda"] = Engine
