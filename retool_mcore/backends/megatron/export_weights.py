"""A checkpoint in Megatron without an optimizer: its weights as a Hugging Face folder, its log-probabilities."""

from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from retool_mcore.backends.megatron import bridges, yarn  # noqa: F401  the first registers them


def load_engine(verl, folder: Path):
    """verl's Megatron engine with a checkpoint's weights, under the run's layout, without an optimizer."""
    verl.model.path = str(folder)
    verl.engine.forward_only = True
    names = dict(model_config="model", engine_config="engine", optimizer_config="optim", checkpoint_config="checkpoint")
    parts = {name: omega_conf_to_dataclass(verl[section]) for name, section in names.items()}
    if not verl.engine.vanilla_mbridge:
        config = parts["model_config"].hf_config
        missing = yarn.missing_settings(getattr(config, "rope_scaling", None), config.max_position_embeddings)
        parts["engine_config"].override_transformer_config.update(missing)
    worker = TrainingWorker(TrainingWorkerConfig(model_type="language_model", profiler_config=None, **parts))
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


def is_first_of_last_stage() -> bool:
    """Whether this rank is the first of those that `megatron_log_probs` gives the same figures."""
    return parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_data_parallel_rank() == 0
