"""Run by torchrun (test_gradient.py): which changes at which tokens reach the gradient of the real Megatron PPO loss.

Arguments: a Hugging Face folder, tp, pp, the output file, overrides of the stage sft. Writes JSON: the response mask,
and for every response token whether changing its label or its advantage changed any parameter's gradient on any rank,
bit for bit. Then a NaN among the advantages: what the update leaves of the weights and of Adam's state, with the guard
and without it. Beside the output, as .pt: log-probabilities on export's probe, all weights under their Hugging Face
names, and each copy of a tied embedding with its gradient.
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

from retool_mcore.backends.megatron import engine as engines
from retool_mcore.backends.megatron.export_weights import is_first_of_last_stage, megatron_log_probs
from retool_mcore.config import compose
from retool_mcore.state import alarms
from retool_mcore.train.hf_log_probs import probe_batch

VOCABULARY, PROMPT = 384, 7
MASK = [1] * 6 + [0] * 5 + [1] * 4 + [0] * 3 + [1] * 5


def build_engine(model: str, tp: int, pp: int, overrides: list[str]):
    named = any(word.startswith("parallel=") for word in overrides)
    layout = [] if named else [f"parallel=cpu-{'tp2' if tp == 2 else 'pp2'}"]
    engines.register_engines()
    verl = compose("sft", [*layout, "model.make=false", f"model.path={model}", *overrides]).verl
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


def loss(model_output, data, dp_group=None):
    # Nothing is clipped: a clipped token has no gradient either.
    wide = dict(clip_ratio=1e9, clip_ratio_low=1e9, clip_ratio_high=1e9, clip_ratio_c=1e9)
    config = ActorConfig(strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **wide)
    return ppo_loss(config, model_output=model_output, data=data, dp_group=dp_group)


def state(engine) -> list[torch.Tensor]:
    """This rank's weights, and its share of Adam's moments and step counts."""
    weights = [p.detach().clone() for module in engine.module for p in module.parameters()]
    kept = [
        v for part in engine.optimizer.chained_optimizers for s in part.optimizer.state.values() for v in s.values()
    ]
    return weights + [torch.as_tensor(value).clone() for value in kept]


def updates(engine, advantages, ids) -> dict:
    """A sound update, one of a NaN with the guard, another sound one, and the NaN without the guard."""
    switches = engine.engine_config.override_mcore_model_config
    switches.update(alarms.engine_switches(compose("rl", []).alarms))
    broken, skipped, moments = advantages.clone(), [], []
    broken[0] = torch.nan
    for given, guarded in ((advantages, True), (broken, True), (advantages, True), (broken, False)):
        switches["watch_updates"] = guarded
        with engine.train_mode():
            metrics = engine.train_batch(batch(given, ids), loss).get("metrics", {})
        skipped.append(int(metrics["skipped_updates"].aggregate()) if "skipped_updates" in metrics else None)
        moments.append(state(engine))
        if len(moments) == 1:
            after = copies(engine, gradients(engine, advantages, ids, None))
    sound = all(bool(torch.isfinite(tensor).all()) for tensor in moments[2])
    everyone = torch.tensor([not differs(moments[0], moments[1]), differs(moments[1], moments[2]), sound]).int()
    torch.distributed.all_reduce(everyone, op=torch.distributed.ReduceOp.MIN)
    spoilt = differs([torch.zeros(())], [torch.tensor(float(any(t.isnan().any() for t in moments[3])))])
    equal = all(torch.equal(a, b) for copy in after for a, b in zip(after[0], copy, strict=True))
    flags = dict(zip(("kept", "went_on", "finite"), map(bool, everyone.tolist()), strict=True))
    return {"skipped": skipped, "spoilt_without": spoilt, "copies": len(after), "equal": equal} | flags


def gradients(engine, advantages, ids, changed_label: int | None) -> list[torch.Tensor]:
    """Gradients of this rank's parameters; `changed_label`: the packed position whose label is another token."""
    processor = type(engine)._lm_head_logits_processor

    def with_other_label(logits, label, *args, **kwargs):
        if changed_label is not None:
            label = label.clone()
            label[0, changed_label] = (label[0, changed_label] + 1) % VOCABULARY
        return processor(engine, logits, label, *args, **kwargs)

    engine._lm_head_logits_processor = with_other_label
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


def copies(engine, gradients: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(gradient, weight) of every copy of a tied embedding, of all ranks: one on the first and on the last stage.

    gradients: of this rank's parameters, as `gradients` returns them: verl clears its own once it leaves train mode.
    """
    weights = [p for module in engine.module for p in module.parameters()]
    pairs = zip(gradients, weights, strict=True)
    shared = [(gradient, p.detach().clone()) for gradient, p in pairs if getattr(p, "shared_embedding", False)]
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, shared)
    return [copy for rank in found for copy in rank]


def save_policy(engine, output: str, tied: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    weights = {name: weight.cpu().clone() for name, weight in engine.get_per_tensor_param()[0]}
    found = megatron_log_probs(engine, probe_batch(VOCABULARY, sequences=4, tokens=48), VOCABULARY)
    if found is not None and is_first_of_last_stage():
        torch.save({"log_probs": found, "weights": weights, "tied": tied}, output + ".pt")


def main(model: str, tp: str, pp: str, output: str, *overrides: str) -> None:
    initialize_global_process_group()
    engine = build_engine(model, int(tp), int(pp), list(overrides))
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (PROMPT + len(MASK),), generator=generator)
    advantages = torch.randn(len(MASK), generator=generator)
    reference = gradients(engine, advantages, ids, None)
    save_policy(engine, output, copies(engine, reference))
    again = gradients(engine, advantages, ids, None)
    result = {"mask": MASK, "label": [], "advantage": [], "repeats": not differs(reference, again)}
    result |= {"ids": ids.tolist(), "advantages": advantages.tolist()}
    result["nonzero"] = differs(reference, [torch.zeros_like(g) for g in reference])
    for token in range(len(MASK)):
        # The logits that predict a token stand one position before it.
        result["label"].append(differs(reference, gradients(engine, advantages, ids, PROMPT + token - 1)))
        other = advantages.clone()
        other[token] += 1.0
        result["advantage"].append(differs(reference, gradients(engine, other, ids, None)))
    result["update"] = updates(engine, advantages, ids)
    if engine.is_mp_src_rank_with_outputs():  # the one whose metrics count
        with open(output, "w") as file:
            json.dump(result, file)
    parallel_state.destroy_model_parallel()
    destroy_global_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
