"""Pushes into vLLM's own layers with FP8 weights, of one and of two tensor-parallel ranks, loaded as verl does it.

Prints "FOUND" and JSON {case: what VerifyingExtension would say of it, or null}. No kernel runs: attention is left out,
and the layers are prepared for the kernel of a Hopper GPU, which cannot be asked whether it is supported here.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.utils.vllm import vllm_fp8_utils, vllm_quant_utils
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.kernels.linear.scaled_mm.cutlass import CutlassFp8BlockScaledMMKernel
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.models import qwen2

from retool_mcore.backends.verl.fingerprint import HEAD, Whole
from retool_mcore.backends.verl.weight_sync import VerifyingWorker, exported_once
from retool_mcore.backends.verl.weight_sync_vllm import compare, fingerprints
from retool_mcore.data.tiny_model import make_tiny_model

SIZES = {"hidden_size": 512, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZES |= {"num_hidden_layers": 1, "dtype": "bfloat16"}
# verl/workers/rollout/vllm_rollout/vllm_async_server.py, release 0.9.1
BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
CHANGED = {  # case: (parameter of the engine, element that is changed there)
    "an element": ("model.layers.0.self_attn.qkv_proj.weight", (-1, 0)),
    "a scale": ("model.layers.0.mlp.gate_up_proj.weight_scale_inv", (0, 1)),
    "an input's scale": ("model.layers.0.mlp.down_proj.weight_scale_inv", (0, -1)),
    "a norm": ("model.norm.weight", (3,)),
}


class NoAttention(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()


def exported(tensors: dict[str, torch.Tensor], quantization: str | None) -> dict[str, Whole]:
    """As the trainer's worker records the stream of a push."""
    seen: list = []
    rollout = SimpleNamespace(quantization=quantization)
    worker = SimpleNamespace(pushed={"tensors": 0, "bytes": 0}, config=SimpleNamespace(rollout=rollout))
    for _ in VerifyingWorker._record(worker, tensors.items(), seen, torch.bfloat16):
        pass
    assert worker.pushed["tensors"] == len(tensors)
    return exported_once(seen)


def loaded(config: VllmConfig, tensors: dict[str, torch.Tensor], ranks: int) -> list[torch.nn.Module]:
    """Each rank's model after two pushes, each of which comes in two buckets."""
    models, named = [], list(tensors.items())
    for rank in range(ranks):
        config.compilation_config.static_forward_context.clear()  # of the rank before
        with patch.multiple(parallel_state.get_tp_group(), world_size=ranks, rank_in_group=rank):
            models.append(initialize_model(config))
            process_weights_after_loading(models[-1], config.model_config, torch.device("cpu"))
            runner = SimpleNamespace(model=models[-1], vllm_config=config)
            for factor in (2, 1):
                state = vllm_quant_utils.prepare_quanted_weights_for_loading(models[-1])
                for bucket in (named[:7], named[7:]):
                    vllm_quant_utils.load_quanted_weights([(name, one * factor) for name, one in bucket], runner)
                vllm_quant_utils.process_quanted_weights_after_loading(models[-1], state)
    return models


def said(wanted: dict[str, Whole], models: list[torch.nn.Module]) -> str | None:
    return compare(models[0], wanted, [fingerprints(model, torch.bfloat16) for model in models])


def tied_on(folder: Path, ranks: int, tensors: dict[str, torch.Tensor], given: dict) -> str | None:
    """What is reported of a tied model, whose embedding and output layer stay as they are."""
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    tied = {name: one for name, one in tensors.items() if name != HEAD}
    config = VllmConfig(model_config=ModelConfig(**given), parallel_config=ParallelConfig(), cache_config=CacheConfig())
    with set_current_vllm_config(config):
        return said(exported(tied, "fp8"), loaded(config, tied, ranks))


def main(folder: Path) -> None:
    given = json.loads((make_tiny_model(folder, seed=1) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(given | SIZES))
    policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    tensors = {name: torch.randn_like(parameter) for name, parameter in policy.named_parameters()}
    own = {"model": str(folder), "tokenizer": str(folder), "dtype": "bfloat16", "enforce_eager": True}
    own |= {"quantization": "fp8", "hf_overrides": {"quantization_config": BLOCKS}}
    config = VllmConfig(model_config=ModelConfig(**own), parallel_config=ParallelConfig(), cache_config=CacheConfig())
    torch.set_default_dtype(torch.bfloat16)  # as vLLM's loader does for a model of this type
    vllm_quant_utils.apply_vllm_quant_patches()
    kernel = object.__new__(CutlassFp8BlockScaledMMKernel)
    found = {}
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
        chosen = patch.object(fp8, "init_fp8_linear_kernel", lambda **_: kernel)
        with patch.object(qwen2, "Attention", NoAttention), chosen:
            wanted = exported(tensors, "fp8")
            for ranks in (1, 2):
                models = loaded(config, tensors, ranks)
                prepared = [layer for layer in models[0].modules() if hasattr(layer, vllm_fp8_utils._FP8_PRISTINE_ATTR)]
                assert [layer.weight.dtype for layer in prepared] == [torch.float8_e4m3fn] * 4
                found[f"all on {ranks}"] = said(wanted, models)
                for case, (path, element) in CHANGED.items():
                    held = dict(models[-1].named_parameters())[path].data
                    before = held[element].clone()
                    held[element] = -before.float()
                    found[f"{case} on {ranks}"] = said(wanted, models)
                    held[element] = before
            found["exported as for bfloat16"] = said(exported(tensors, None), models)
            swapped = dict(tensors)
            up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
            swapped[up], swapped[gate] = tensors[gate], tensors[up]
            found["gate and up swapped"] = said(wanted, loaded(config, swapped, 1))
            for ranks in (1, 2):
                found[f"tied on {ranks}"] = tied_on(folder, ranks, tensors, own)
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made) / "model")
