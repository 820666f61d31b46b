"""Pushes of tied models into vLLM's own model of each family, on one and on two tensor-parallel ranks.

Prints "FOUND" and JSON {"FAMILY CASE on RANKS": what VerifyingExtension would report, or null}. No kernel runs:
attention is left out.
"""

import importlib
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from families import FAMILIES, write_family
from safetensors.torch import load_file
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.utils import initialize_model

from retool_mcore.backends.verl.fingerprint import EMBEDDING, HEAD, Whole
from retool_mcore.backends.verl.weight_sync import VerifyingWorker, exported_once
from retool_mcore.backends.verl.weight_sync_vllm import compare, fingerprints

MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe")  # of vLLM; its Mistral takes Llama's attention


class NoAttention(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()


def exported(tensors: dict[str, torch.Tensor]) -> dict[str, Whole]:
    """As the trainer's worker records the stream of a push."""
    seen: list = []
    config = SimpleNamespace(rollout=SimpleNamespace(quantization=None))
    worker = SimpleNamespace(told={"tensors": 0, "bytes": 0}, config=config)
    for _ in VerifyingWorker._record(worker, tensors.items(), seen, torch.float32):
        pass
    return exported_once(seen)


def loaded(config: VllmConfig, tensors: dict[str, torch.Tensor], ranks: int) -> list[torch.nn.Module]:
    models = []
    for rank in range(ranks):
        config.compilation_config.static_forward_context.clear()  # of the rank before
        with patch.multiple(parallel_state.get_tp_group(), world_size=ranks, rank_in_group=rank):
            models.append(initialize_model(config))
            models[-1].load_weights((name, tensor.clone()) for name, tensor in tensors.items())
    return models


def cases(config: VllmConfig, tensors: dict[str, torch.Tensor], ranks: int) -> dict[str, str | None]:
    models = loaded(config, tensors, ranks)
    with_head = tensors | {HEAD: tensors[EMBEDDING]}

    def report(sent: dict[str, torch.Tensor]) -> str | None:
        return compare(models[0], exported(sent), [fingerprints(model, torch.float32) for model in models])

    found = {"shared": report(tensors), "shared, head exported": report(with_head)}
    found["another head exported"] = report(with_head | {HEAD: 2 * tensors[EMBEDDING]})
    found["pushed with a head"] = compare(
        models[0],
        exported(with_head),
        [fingerprints(model, torch.float32) for model in loaded(config, with_head, ranks)],
    )
    for model in models:  # a head with a tensor of its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.clone(), requires_grad=False)
    found["own head"] = report(tensors)
    models[-1].lm_head.weight.data[0, 1] += 1
    found["own head, wrong"] = report(tensors)
    for model in models:  # one layer for both, as vLLM 0.24 has in Qwen's models
        model.lm_head = model.model.embed_tokens
    found["one layer"], found["one layer, head exported"] = report(tensors), report(with_head)
    models[0].model.embed_tokens.weight.data[3, 0] += 1
    found["embedding wrong"] = report(with_head)
    return {f"{case} on {ranks}": words for case, words in found.items()}


def main(folder: Path) -> None:
    found = {}
    with ExitStack() as stack:
        # vLLM makes its groups for the first model: those of experts serve the others too.
        for number, family in enumerate(sorted(FAMILIES, key=lambda name: name != "qwen3-moe")):
            model = write_family(folder / family, family, tied=True)
            tensors = load_file(model / "model.safetensors")
            assert HEAD not in tensors
            config = VllmConfig(
                model_config=ModelConfig(model=str(model), tokenizer=str(model), dtype="float32", enforce_eager=True),
                parallel_config=ParallelConfig(),
                cache_config=CacheConfig(),
            )
            with set_current_vllm_config(config):
                if not number:
                    parallel_state.init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
                    parallel_state.initialize_model_parallel(1, 1)
                    for name in MODELS:
                        module = importlib.import_module(f"vllm.model_executor.models.{name}")
                        stack.enter_context(patch.object(module, "Attention", NoAttention))
                for ranks in (1, 2):
                    found |= {f"{family} {case}": words for case, words in cases(config, tensors, ranks).items()}
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
