"""Run by torchrun (test_gradient.py): which changes at which tokens reach the gradient of the real Megatron PPO loss.

Arguments: a Hugging Face folder, tp, pp, the output file. Writes JSON: the response mask, and for every response token
whether changing its label or its advantage changed any parameter's gradient on any rank, bit for bit.
"""

import json
import sys

import torch
from megatron.core import parallel_state
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group
from verl.workers.config import ActorConfig
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from retool_mcore.config import compose

VOCABULARY, PROMPT = 384, 7
MASK = [1] * 6 + [0] * 5 + [1] * 4 + [0] * 3 + [1] * 5


def build_engine(model: str, tp: int, pp: int):
    layout = f"parallel=cpu-{'tp2' if tp == 2 else 'pp2'}"
    verl = compose("sft", [layout, "model.make=false", f"model.path={model}"]).verl
    names = dict(model_config="model", engine_config="engine", optimizer_config="optim", checkpoint_config="checkpoint")
    parts = {name: omega_conf_to_dataclass(verl[section]) for name, section in names.items()}
    parts["optimizer_config"].total_training_steps = 1000
    worker = TrainingWorker(TrainingWorkerConfig(model_type="language_model", profiler_config=None, **parts))
    worker.reset()
    assert worker.engine.engine_config.tensor_model_parallel_size == tp
    assert worker.engine.engine_config.pipeline_model_parallel_size == pp
    return worker.engine


def batch(advantages: torch.Tensor, ids: torch.Tensor) -> TensorDict:
    """One trajectory in verl's no-padding layout."""

    def nested(values):
        return torch.nested.as_nested_tensor([values], layout=torch.jagged)

    response = ids[PROMPT:]
    mask = torch.tensor(MASK)
    old_log_probs = torch.linspace(-5.0, -1.0, len(MASK))
    data = {
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "prompts": ids[:PROMPT],
        "responses": response,
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
    }
    tensors = TensorDict({name: nested(values) for name, values in data.items()}, batch_size=1)
    settings = dict(temperature=1.0, global_batch_size=1, use_dynamic_bsz=False, micro_batch_size_per_gpu=1)
    tensordict_utils.assign_non_tensor(tensors, **settings)
    return tensors


def gradients(engine, advantages, ids, changed_label: int | None) -> list[torch.Tensor]:
    """Gradients of this rank's parameters; `changed_label`: the packed position whose label is another token."""
    processor = type(engine)._lm_head_logits_processor

    def with_other_label(logits, label, *args, **kwargs):
        if changed_label is not None:
            label = label.clone()
            label[0, changed_label] = (label[0, changed_label] + 1) % VOCABULARY
        return processor(engine, logits, label, *args, **kwargs)

    engine._lm_head_logits_processor = with_other_label
    # Nothing is clipped: a clipped token has no gradient either.
    wide = dict(clip_ratio=1e9, clip_ratio_low=1e9, clip_ratio_high=1e9, clip_ratio_c=1e9)
    config = ActorConfig(strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **wide)

    def loss(model_output, data, dp_group=None):
        return ppo_loss(config, model_output=model_output, data=data, dp_group=dp_group)

    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(advantages, ids), loss, forward_only=False)
        return [p.main_grad.clone() for module in engine.module for p in module.parameters()]


def differs(reference, other) -> bool:
    """Whether any gradient of any rank differs in any bit."""
    here = any(not torch.equal(a, b) for a, b in zip(reference, other, strict=True))
    flag = torch.tensor(int(here))
    torch.distributed.all_reduce(flag)
    return bool(flag)


def main(model: str, tp: str, pp: str, output: str) -> None:
    initialize_global_process_group()
    engine = build_engine(model, int(tp), int(pp))
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (PROMPT + len(MASK),), generator=generator)
    advantages = torch.randn(len(MASK), generator=generator)
    reference = gradients(engine, advantages, ids, None)
    again = gradients(engine, advantages, ids, None)
    result = {"mask": MASK, "label": [], "advantage": [], "repeats": not differs(reference, again)}
    result["nonzero"] = differs(reference, [torch.zeros_like(g) for g in reference])
    for token in range(len(MASK)):
        # The logits that predict a token stand one position before it.
        result["label"].append(differs(reference, gradients(engine, advantages, ids, PROMPT + token - 1)))
        other = advantages.clone()
        other[token] += 1.0
        result["advantage"].append(differs(reference, gradients(engine, other, ids, None)))
    if torch.distributed.get_rank() == 0:
        with open(output, "w") as file:
            json.dump(result, file)
    parallel_state.destroy_model_parallel()
    destroy_global_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
