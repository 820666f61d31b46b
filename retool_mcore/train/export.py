"""Export: a Megatron checkpoint to a Hugging Face folder, and the proof that both are the same model. Started by torchrun.

The checkpoint is loaded into Megatron under the run's own parallel layout, written out through the bridge, and read back
by transformers in a process of its own: log-probabilities of the whole vocabulary on a probe batch must agree.
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
from verl.trainer.config import CheckpointConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from retool_mcore.errors import UserError
from retool_mcore.platform.check import assert_adapters
from retool_mcore.train import checkpoints
from retool_mcore.train.hf_log_probs import probe_batch


def load_engine(verl, checkpoint: Path):
    """verl's Megatron engine with the weights of `checkpoint`, no optimizer."""
    verl.model.path = str(checkpoints.policy_folder(checkpoint))
    verl.engine.forward_only = True
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(verl.model),
            engine_config=omega_conf_to_dataclass(verl.engine),
            optimizer_config=omega_conf_to_dataclass(verl.optim),
            checkpoint_config=CheckpointConfig(save_contents=["hf_model"], load_contents=["model"]),
            profiler_config=None,
        )
    )
    worker.reset()
    inner = checkpoint / "actor" if (checkpoint / "actor").is_dir() else checkpoint
    worker.engine.load_checkpoint(str(inner), del_local_after_load=False)
    return worker.engine


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
    stage_dir, output = Path(config.run_dir) / config.policy, Path(config.output)
    checkpoint = checkpoints.latest(stage_dir / "checkpoints")
    if checkpoint is None:
        raise UserError(f"{stage_dir}/checkpoints holds no complete checkpoint; run `retool {config.policy}` first.")
    initialize_global_process_group()
    engine = load_engine(config.verl, checkpoint)
    part = output.with_name(output.name + ".part")
    engine.save_checkpoint(local_path=str(part), global_step=checkpoints.step_of(checkpoint))
    vocab_size = engine.model_config.hf_config.vocab_size
    log_probs = megatron_log_probs(engine, probe_batch(vocab_size, **config.probe), vocab_size)
    first_of_last_stage = log_probs is not None and parallel_state.get_tensor_model_parallel_rank() == 0
    if first_of_last_stage and parallel_state.get_data_parallel_rank() == 0:
        finish(config, part, output, checkpoint, log_probs)
    torch.distributed.barrier()
    destroy_global_process_group()


def finish(config, part: Path, output: Path, checkpoint: Path, log_probs: torch.Tensor) -> None:
    """Compare with transformers on the exported folder and, when they agree, move it to `output`."""
    folder = checkpoints.policy_folder(part)
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "hf.pt"
        # A process of its own: the CPU adapter of torch leaves transformers' rotary buffers uninitialised.
        command = [sys.executable, "-m", "retool_mcore.train.hf_log_probs", str(folder), str(reference)]
        subprocess.run([*command, json.dumps(OmegaConf.to_container(config.probe))], check=True, env=plain_env())
        difference = (log_probs - torch.load(reference)).abs().max().item()
    step = checkpoints.step_of(checkpoint)
    report = {"checkpoint": str(checkpoint), "step": step, "max_log_prob_difference": difference}
    print(f"Megatron and Hugging Face log-probabilities differ by at most {difference:.2e} (limit {config.max_difference})")
    if not difference <= config.max_difference:
        raise UserError(f"the exported model is not the trained one: log-probabilities differ by {difference:.2e}.")
    if output.exists():
        shutil.rmtree(output)
    os.replace(folder, output)
    shutil.rmtree(part)
    (output / "export.json").write_text(json.dumps(report, indent=2))
    print(f"exported {checkpoint.name} to {output}")


def plain_env() -> dict[str, str]:
    """The environment without torchrun's rendezvous and without the CPU platform."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "VERL_PLATFORM")
    return {name: value for name, value in os.environ.items() if name not in dropped}


if __name__ == "__main__":
    main(sys.argv[1])
