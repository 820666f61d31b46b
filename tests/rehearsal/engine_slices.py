"""What vLLM's ranks hold of pushed tensors: its own model of each tensor-parallel rank, filled by its own loaders.

`python engine_slices.py MODEL PUSHED EXPORT RANKS...`: MODEL is a Hugging Face folder; PUSHED and EXPORT are records
with `parameters` (recorded_engine.py). Prints JSON {ranks: what VerifyingExtension would say of them, or null}. No
kernel runs: attention is left out.
"""

import json
import sys
import tempfile
from types import SimpleNamespace
from unittest.mock import patch

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.utils import initialize_model

from retool_mcore.backends.verl.fingerprint import Whole, difference, whole
from retool_mcore.backends.verl.weight_sync import VerifyingWorker, exported_once
from retool_mcore.backends.verl.weight_sync_vllm import fingerprints


class NoAttention(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()


def exported(tensors: dict[str, torch.Tensor]) -> dict[str, Whole]:
    """As the trainer's worker records the stream of a push."""
    seen: list = []
    config = SimpleNamespace(rollout=SimpleNamespace(quantization=None))
    worker = SimpleNamespace(pushed={"tensors": 0, "bytes": 0}, config=config)
    for _ in VerifyingWorker._record(worker, tensors.items(), seen, torch.float32):
        pass
    return exported_once(seen)


def held(config: VllmConfig, tensors: dict[str, torch.Tensor], ranks: int) -> list[dict]:
    """Blocks that each of `ranks` ranks holds after a push."""
    found = []
    group = parallel_state.get_tp_group()
    for rank in range(ranks):
        config.compilation_config.static_forward_context.clear()  # of the rank before
        with patch.multiple(group, world_size=ranks, rank_in_group=rank):
            model = initialize_model(config)
            model.load_weights((name, tensor.clone()) for name, tensor in tensors.items())
            found.append(fingerprints(model, torch.float32))
    return found


def main(folder: str, pushed: str, export: str, *ranks: str) -> None:
    tensors, wanted = (torch.load(path)["parameters"] for path in (pushed, export))
    config = VllmConfig(
        model_config=ModelConfig(model=folder, tokenizer=folder, dtype="float32", enforce_eager=True),
        parallel_config=ParallelConfig(),
        cache_config=CacheConfig(),
    )
    modules = ("vllm.model_executor.models.qwen2", "vllm.model_executor.models.qwen3_moe")
    with set_current_vllm_config(config), tempfile.NamedTemporaryFile() as store:
        parallel_state.init_distributed_environment(1, 0, f"file://{store.name}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
        with patch(f"{modules[0]}.Attention", NoAttention), patch(f"{modules[1]}.Attention", NoAttention):
            said = {n: difference(exported(wanted), *whole(held(config, tensors, int(n)))) for n in ranks}
    print("FOUND " + json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
