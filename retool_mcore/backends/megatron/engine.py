"""verl's Megatron engine with switches of ours, in `parallel.megatron.override_mcore_model_config`.

- `init: random`: Megatron's own seeded initialisation stays, no checkpoint is read; the model's folder needs config and
  tokenizer only. Two layouts of one seed hold different weights: Megatron draws each rank's part alone.
- `fused_log_probs: true`: log-probabilities and entropies by backends/megatron/fused_log_probs.py (CUDA only).
- `half_logits: true`: they get the logits in the model's type; else Megatron copies them to float32 first.
- `packing: true`: full micro-batches, planned in milliseconds, by backends/megatron/micro_batches.py, and moved into
  Megatron's buffer and out of it without waiting for the GPU, by backends/megatron/packed_layout.py.
- `watch_updates` and its four settings: of the section `alarms`, by backends/megatron/guarded_update.py.

verl 0.9.1 has an option for none (workers/engine/megatron/transformer_impl.py:500 always loads). `register_engines`
registers the class with verl as another vendor's; with all switches off it is verl's.
"""
# The mix-ins use attributes of verl's classes, which they are mixed into.
# mypy: disable-error-code="attr-defined"

import contextlib
import functools
import os
from datetime import timedelta
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.serialization import load_sharded_metadata
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import get_model_config
from verl.utils.device import get_device_id
from verl.utils.megatron_utils import get_extra_dist_checkpoint_path
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead, MegatronEngineWithValueHead, transformer_impl

from retool_mcore.backends.env import NCCL_TIMEOUT_S
from retool_mcore.backends.megatron import (  # noqa: F401  bridges registers
    adam_state,
    beats,
    bridges,
    micro_batches,
    pace,
    packed_layout,
    yarn,
)
from retool_mcore.backends.megatron.adapters import AdapterCheckpoints
from retool_mcore.backends.megatron.guarded_update import GuardedUpdate
from retool_mcore.files import sync_tree
from retool_mcore.state import reading

_VENDOR = "retool"  # verl chooses among the engines of a device by a vendor, which an environment variable names


class _Packs(GuardedUpdate):
    """Methods that are overridden, here and below: verl/workers/engine/megatron/transformer_impl.py, release 0.9.1."""

    @functools.cached_property
    def _beats(self):
        return beats.MicroBatches()

    def initialize(self):
        with reading.beating():  # the weights that the policy begins with
            super().initialize()
        if (seconds := os.environ.get(NCCL_TIMEOUT_S)) and torch.cuda.is_available():
            # verl 0.9.1 has no option: its group of all ranks has torch's or its own time-out, and Megatron's groups
            # have Megatron's.
            parallel_state.update_pg_timeout(timedelta(seconds=float(seconds)))

    def _build_tf_config(self):
        if not self.engine_config.vanilla_mbridge:
            config, settings = self.model_config.hf_config, self.engine_config.override_transformer_config
            missing = yarn.missing_settings(getattr(config, "rope_scaling", None), config.max_position_embeddings)
            settings.update({name: value for name, value in missing.items() if name not in settings})
        super()._build_tf_config()

    def _build_optimizer(self):
        optimizer = super()._build_optimizer()  # registers the functions that Megatron calls in an update
        adam_state.begin(optimizer)
        config = get_model_config(self.module[0])
        config.finalize_model_grads_func = pace.watched(config.finalize_model_grads_func, lambda: self._beats.began)
        return optimizer

    def save_checkpoint(self, local_path, *arguments, **named):
        super().save_checkpoint(local_path, *arguments, **named)
        if torch.distributed.get_rank() == 0:  # Megatron syncs its own files, and nobody the Hugging Face weights
            sync_tree(Path(local_path))

    def load_checkpoint(self, local_path, *arguments, **named):
        """Load a checkpoint like verl, without random states that ranks of another layout saved: Megatron keeps them by
        tp and pp."""
        manager, parts = self.checkpoint_mananager, self.checkpoint_mananager.checkpoint_load_contents
        if "extra" in parts:
            saved = load_sharded_metadata(get_extra_dist_checkpoint_path(local_path))
            if manager.get_rng_state().unique_key not in saved:
                manager.checkpoint_load_contents = [part for part in parts if part != "extra"]
                if manager.rank == 0:
                    pp, tp = next(iter(saved.values())).global_shape
                    mismatch = f"{local_path} is of TP{tp} PP{pp}, and this run is not"
                    print(f"{mismatch}: random states start anew.", flush=True)
        with reading.beating():
            super().load_checkpoint(local_path, *arguments, **named)

    def _switch(self, name: str) -> bool | str | float:
        return (self.engine_config.override_mcore_model_config or {}).get(name, False)

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        self._beats.begin(forward_only)
        packing = micro_batches.packed(micro_batches.alignment(self.engine_config))
        with packing if self._switch("packing") else contextlib.nullcontext():
            return super().forward_backward_batch(data, loss_function, forward_only=forward_only)

    def forward_step(self, batch_iter, model, *functions, **named):
        config, batch_iter = self.engine_config, self._beats.taken(batch_iter)
        splits = config.context_parallel_size > 1 or config.dynamic_context_parallel
        if not self._switch("packing") or splits or not config.use_remove_padding:
            return super().forward_step(batch_iter, model, *functions, **named)
        batch, device = next(batch_iter), torch.device(get_device_id())
        layout = packed_layout.PackedLayout(batch, device)
        with layout.used():
            output, loss = super().forward_step(
                iter([packed_layout.to_device(batch, device)]), model, *functions, **named
            )
        return output, layout.using(loss)

    def postprocess_micro_batch_func(self, output, data, forward_only, loss_function, local_cp_size=None):
        if not self._switch("packing") or loss_function is not None:
            return super().postprocess_micro_batch_func(output, data, forward_only, loss_function, local_cp_size)
        # verl reads its constant loss back from the GPU, which then waits for the next micro-batch.
        outputs = transformer_impl.detach_tree(self.prepare_model_outputs(output, data))
        return torch.ones((), device=data["input_ids"].device), {"loss": 1.0, "metrics": {}, "model_output": outputs}


class Engine(_Packs, MegatronEngineWithLMHead):
    """The policy's."""

    def initialize(self):
        super().initialize()
        if self.peft_cls is not None and self.optimizer is not None:
            self.checkpoint_mananager.__class__ = AdapterCheckpoints

    def _build_megatron_module(self):
        modules = self._with_weights()
        if self._switch("fused_log_probs") and self._switch("half_logits"):
            for part in (part for module in modules for part in module.modules() if isinstance(part, Float16Module)):
                part.forward = functools.partial(part.forward, fp32_output=False)
        return modules

    def _with_weights(self):
        if self._switch("init") != "random":
            return super()._build_megatron_module()
        if torch.distributed.get_rank() == 0:
            print("The policy's weights are random (model.init=random): no checkpoint is read.")
        bridge = self.bridge  # mbridge's loads by the first name, Megatron-Bridge's by the second
        bridge.load_weights = bridge.load_hf_weights = lambda *given, **named: None
        try:
            return super()._build_megatron_module()
        finally:
            del bridge.load_weights, bridge.load_hf_weights

    def _lm_head_logits_processor(self, logits, label, temperature, **options):
        special = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
        if not self._switch("fused_log_probs") or any(options[name] for name in special):
            return super()._lm_head_logits_processor(logits.float(), label, temperature, **options)
        from retool_mcore.backends.megatron import fused_log_probs

        log_probs, entropy = fused_log_probs.log_probs(
            logits,
            label,
            temperature.clamp(min=1e-8),  # as verl does where a token is padding
            entropy=options["calculate_entropy"],
            group=parallel_state.get_tensor_model_parallel_group(),
        )
        return {"log_probs": log_probs} | ({} if entropy is None else {"entropy": entropy})


class CriticEngine(_Packs, MegatronEngineWithValueHead):
    """PPO's critic's: of the switches only `packing`."""


def register_engines() -> None:
    """Make verl build these engines wherever it would build its own Megatron engines, in this process."""
    _register()
    os.environ["VERL_ENGINE_VENDOR"] = _VENDOR


@functools.cache
def _register() -> None:
    for kind, engine in (("language_model", Engine), ("value_model", CriticEngine)):
        EngineRegistry.register(kind, backend="megatron", device="cuda", vendor=_VENDOR)(engine)
