"""Export: a Megatron checkpoint to a Hugging Face folder, proven to be the same model. Started by torchrun.

The checkpoint is loaded into Megatron under the run's own parallel layout, written out through the bridge, and read
back by transformers in a process of its own: log-probabilities of the whole vocabulary on a probe batch must agree.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from retool_mcore.errors import UserError
from retool_mcore.platform.check import assert_adapters
from retool_mcore.train.checkpoints import policy_step
from retool_mcore.train.hf_log_probs import probe_batch


def load_engine(verl, folder: Path):
    """verl's Megatron engine with a checkpoint's weights, under the run's layout, without an optimizer."""
    verl.model.path = str(folder)
    verl.engine.forward_only = True
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(verl.model),
            engine_config=omega_conf_to_dataclass(verl.engine),
            optimizer_config=omega_conf_to_dataclass(verl.optim),
            checkpoint_config=omega_conf_to_dataclass(verl.checkpoint),
            profiler_config=None,
        )
    )
    worker.reset()
    return worker.engine


def write_weights(engine, output: Path) -> None:
    """Write Megatron's weights to `output` in Hugging Face's names and shapes; every rank takes part."""
    if engine.vanilla_bridge:
        engine.bridge.save_weights(engine.module, str(output))
    else:
        engine.bridge.save_hf_weights(engine.module, str(output))


@torch.no_grad()
def megatron_log_probs(engine, ids: torch.Tensor, vocab_size: int) -> torch.Tensor | None:
    """Log-probabilities (sequences, tokens, vocab) float32 of every next token; None off the last pipeline stage."""
    device = next(engine.module[0].parameters()).device
    ids = ids.to(device)
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids)

    def forward_step(batches, model):
        return model(input_ids=next(batches), position_ids=positions, attention_mask=None), lambda out, **kwargs: out

    outputs = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter([ids]),
        model=engine.module,
        num_microbatches=1,
        seq_length=ids.shape[1],
        micro_batch_size=ids.shape[0],
        forward_only=True,
        collect_non_loss_data=True,
    )
    if not parallel_state.is_pipeline_last_stage():
        return None
    logits = tensor_parallel.gather_from_tensor_model_parallel_region(outputs[0])
    return torch.log_softmax(logits[..., :vocab_size].float(), dim=-1).cpu()


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    source, output = Path(config.policy_path).resolve(), Path(config.output)
    initialize_global_process_group()
    engine = load_engine(config.verl, source)
    part = output.with_name(output.name + ".part")
    if torch.distributed.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    torch.distributed.barrier()
    write_weights(engine, part)
    torch.distributed.barrier()
    vocab_size = engine.model_config.hf_config.vocab_size
    log_probs = megatron_log_probs(engine, probe_batch(vocab_size, **config.probe), vocab_size)
    first = parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_data_parallel_rank() == 0
    if log_probs is not None and first:
        finish(config, part, output, log_probs)
    torch.distributed.barrier()
    destroy_global_process_group()


def finish(config, part: Path, output: Path, log_probs: torch.Tensor) -> None:
    """Compare with transformers on the exported folder and, when they agree, move it to `output`."""
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "hf.pt"
        # A process of its own: the CPU adapter of torch leaves transformers' rotary buffers uninitialised.
        command = [sys.executable, "-m", "retool_mcore.train.hf_log_probs", str(part), str(reference)]
        subprocess.run([*command, json.dumps(OmegaConf.to_container(config.probe))], check=True, env=plain_env())
        difference = (log_probs - torch.load(reference)).abs().max().item()
    print(f"log-probabilities of Megatron and Hugging Face differ by {difference:.2e} (limit {config.max_difference})")
    if not difference <= config.max_difference:
        raise UserError(f"the exported model is not the trained one: log-probabilities differ by {difference:.2e}.")
    step = policy_step(Path(config.policy_path))
    report = {"policy": config.policy, "step": step, "max_log_prob_difference": difference}
    (part / "export.json").write_text(json.dumps(report, indent=2))
    shutil.rmtree(output, ignore_errors=True)
    os.replace(part, output)
    print(f"exported step {step} of {config.policy} to {output}")


def plain_env() -> dict[str, str]:
    """The environment without torchrun's rendezvous and without the CPU platform."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "VERL_PLATFORM")
    return {name: value for name, value in os.environ.items() if name not in dropped}


if __name__ == "__main__":
    main(sys.argv[1])
