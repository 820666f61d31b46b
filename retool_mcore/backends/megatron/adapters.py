"""Checkpoints of LoRA (model.lora) that are whole policies.

verl 0.9.1 saves the adapters alone, as Megatron's shards and in PEFT's form (`adapter/`), and a run that goes on has
them on whatever model.path holds then. Here a checkpoint's Hugging Face folder holds base and adapters in one, as any
other's, so that what follows (RL, export, evaluation) needs no word of LoRA. `adapter/lora.json` says on which base
they lie, by a digest of its bits, which no layout changes.
"""

import functools
import hashlib
import json
from pathlib import Path

import torch
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

from retool_mcore.backends.verl.fingerprint import fingerprint
from retool_mcore.files import write_atomically
from retool_mcore.state import checkpoints, initial_weights


class AdapterCheckpoints(MegatronCheckpointManager):
    """verl's manager (release 0.9.1) of a model with adapters, which Megatron-Bridge builds and merges."""

    def _save_model_as_hf_via_bridge(self, hf_ckpt_path):
        super()._save_model_as_hf_via_bridge(hf_ckpt_path)
        self.bridge.save_hf_weights(self.model, hf_ckpt_path, strict=self.checkpoint_config.strict)
        base, lora = self.base(), self.peft_cls
        if self.rank == 0:
            settings = {"rank": lora.dim, "alpha": lora.alpha, "targets": list(lora.target_modules)}
            record = {"lora": settings, "base": base, "path": str(self.model_path)}
            write_atomically(Path(hf_ckpt_path) / checkpoints.LORA, json.dumps(record, indent=2))

    def load_checkpoint(self, local_path, *arguments, **named):
        """Load a checkpoint like verl. Raises UserError where the base is not the checkpoint's."""
        record = json.loads((checkpoints.policy_folder(Path(local_path)) / checkpoints.LORA).read_text())
        if self.base() != record["base"]:
            raise initial_weights.other_weights(f"what is trained in {local_path}", self.model_path, record["path"])
        super().load_checkpoint(local_path, *arguments, **named)

    @functools.cache  # noqa: B019  a process has one; no step changes what takes a save's time to gather
    def base(self) -> str:
        """sha256 (hex) of the weights below the adapters, under their Hugging Face names. Every rank takes part."""
        exported = self.bridge.export_hf_weights(self.model, show_progress=False, merge_adapter_weights=False)
        digests = {name.replace(".base_layer", ""): fingerprint(weight) for name, weight in exported}
        values = torch.stack(list(digests.values())).tolist()  # one wait for the device
        return hashlib.sha256(json.dumps(sorted(zip(digests, values, strict=True))).encode()).hexdigest()
