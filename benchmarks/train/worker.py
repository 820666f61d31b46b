"""One group of update.py, a process a device (torchrun): builds verl's training worker and times its steps.

Writes a line of JSON for every run's start and end: the driver starts a group again behind a run that ended it.
"""

import copy
import functools
import gc
import json
import math
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf, open_dict
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import initialize_global_process_group
from verl.utils.metric import Metric
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss, sft_loss

from benchmarks import provenance
from benchmarks.train import fsdp
from retool_mcore.backends.megatron import engine
from retool_mcore.backends.megatron.token_positions import token_positions
from retool_mcore.backends.verl.audited_loss import SPAN_KIND, AuditedLoss
from retool_mcore.config import compose
from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.audit import INTERPRETER, POLICY

PROMPT = 128  # tokens of a sequence that are its prompt
SPAN = 64  # every fifth span of so many response tokens is the interpreter's
CUDA = torch.cuda.is_available()
LEFT_OVER_GB = 1.0  # of the engine before: above this the next one gets a process of its own
LARGE = 1e6  # bytes of a tensor that is worth freeing
AGAIN = 75  # exit code: start me again for the runs that are left


def write_model(folder: Path, shape: dict, layers: int, weights: bool) -> Path:
    """A Hugging Face folder of `shape` with `layers` layers and the tiny tokenizer; with `weights`, seeded ones."""
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["ffn"],
        num_hidden_layers=layers,
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=32768,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=shape["tied"],
        dtype="bfloat16" if CUDA else "float32",
    )
    config.architectures = ["Qwen2ForCausalLM"]
    if torch.distributed.get_rank() == 0 and not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), **special).save_pretrained(folder)
        if weights:
            torch.manual_seed(0)
            torch.set_default_dtype(config.dtype)
            with torch.device("cuda" if CUDA else "cpu"):
                Qwen2ForCausalLM(config).save_pretrained(folder)
            torch.set_default_dtype(torch.float32)
        GenerationConfig(eos_token_id=2, pad_token_id=0).save_pretrained(folder)
        config.save_pretrained(folder)
    torch.distributed.barrier()
    return folder


@functools.cache
def composed(parallel: str):
    return compose("rl", [f"parallel={parallel}", "model.name=benchmark"]).verl


def build(run: dict, layout: dict, folder: Path) -> tuple[TrainingWorker, OmegaConf]:
    """verl's worker around its Megatron engine with the settings of `retool rl`, the run's laid over them; around its
    FSDP engine where `layout` has sp."""
    verl = copy.deepcopy(composed("1gpu" if CUDA else "cpu-tp2"))
    actor = verl.actor_rollout_ref.actor
    sizes = {
        "tensor_model_parallel_size": layout.get("tp", 1),
        "pipeline_model_parallel_size": layout.get("pp", 1),
        "context_parallel_size": layout.get("cp", 1),
        "sequence_parallel": layout.get("tp", 1) > 1,
    }
    fused_kernels = run["settings"].get("use_fused_kernels", False)
    with open_dict(verl):
        actor.megatron = OmegaConf.merge(actor.megatron, sizes, run["settings"].get("engine", {}))
        actor.megatron.override_mcore_model_config.init = run["init"]
        actor.optim = OmegaConf.merge(actor.optim, run["settings"].get("optim", {}))
        actor.optim.total_training_steps = 1000
        actor.optim.lr = 1e-6  # the paper's: the tiny task's would carry random weights far away
        verl.actor_rollout_ref.model.use_fused_kernels = fused_kernels
        verl.actor_rollout_ref.model.path = str(folder)
        if "sp" in layout:
            engine_config, optimizer_config = fsdp.configs(verl, run, layout)
        else:
            engine_config, optimizer_config = map(omega_conf_to_dataclass, (actor.megatron, actor.optim))
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=omega_conf_to_dataclass(verl.actor_rollout_ref.model),
        engine_config=engine_config,
        optimizer_config=optimizer_config,
        checkpoint_config=omega_conf_to_dataclass(actor.checkpoint),
    )
    worker = TrainingWorker(config=config)
    worker.reset()
    return worker, verl


class FirstMiniBatch:
    """A PPO loss whose old log-probabilities are the policy's own, as in a step's first mini-batch: nothing is cut."""

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, model_output, data, dp_group=None):
        log_probs = model_output["log_probs"]
        values = (log_probs.values() if log_probs.is_nested else log_probs).detach()
        old = values[token_positions(data)]
        rows = old.split(data["responses"].offsets().diff().tolist())
        data["old_log_probs"] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
        return self.loss(model_output=model_output, data=data, dp_group=dp_group)


def batch(run: dict, worker: TrainingWorker, verl) -> "tensordict_utils.TensorDict":
    """This data-parallel rank's share of the run's sequences: random tokens, the same in every layout."""
    rank, size = worker.engine.get_data_parallel_rank(), worker.engine.get_data_parallel_size()
    sp = getattr(worker.engine, "ulysses_sequence_parallel_size", 1)
    columns = {}
    for index in range(rank, len(run["lengths"]), size):
        length = run["lengths"][index]
        made = torch.Generator().manual_seed(1000 + index)
        tokens = torch.randint(run["shape"]["vocab"], (length,), generator=made)
        answer = length - PROMPT if length > 2 * PROMPT else length // 2
        interpreter = torch.arange(answer) // SPAN % 5 == 4
        kind = torch.where(interpreter, INTERPRETER, POLICY).to(torch.int8)
        mask = (~interpreter).long()
        whole = torch.cat([torch.zeros(length - answer, dtype=torch.long), mask])
        advantage = torch.randn((), generator=made).item()
        if run["kind"] == "sft":
            row = {"input_ids": tokens, "position_ids": torch.arange(length), "loss_mask": whole}
        else:
            row = {"input_ids": tokens, "position_ids": torch.arange(length), "loss_mask": mask}
            row |= {"prompts": tokens[: length - answer], "responses": tokens[length - answer :]}
            row |= {"response_mask": mask, SPAN_KIND: kind, "old_log_probs": torch.zeros(answer)}
            row["advantages"] = advantage * mask
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    tensors = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    return tensordict_utils.get_tensordict(
        tensors,
        {
            "temperature": 1.0,
            "calculate_entropy": run.get("entropy", False),
            "global_batch_size": len(run["lengths"]),
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": run["micro_batch_tokens"] // sp,  # verl's FSDP engine multiplies it by sp
            "pad_mode": "no_padding",
            "update_lr_scheduler": True,
            "global_token_num": tensordict_utils.NonTensorData(run["lengths"]),
        },
    )


def step(worker: TrainingWorker, data) -> tuple[float, dict]:
    """(seconds, metrics of the ranks that have them) of one optimizer step; the devices are waited for."""
    data = data.copy()
    torch.cuda.synchronize()
    torch.distributed.barrier()
    start = time.perf_counter()
    output = worker.train_batch(data)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, {} if output is None else tensordict_utils.get(output, "metrics")


def everywhere(value) -> list:
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def number(value):
    value = value.aggregate() if isinstance(value, Metric) else value
    return float(value[0] if isinstance(value, list) else value)


def measure(run: dict, worker: TrainingWorker, verl) -> dict:
    """The run's row: seconds of each timed step, loss and gradient norm of every step, peak memory of each rank."""
    if run["kind"] == "sft":
        loss = partial(sft_loss, config=None)
    else:
        actor = omega_conf_to_dataclass(verl.actor_rollout_ref.actor)
        loss = FirstMiniBatch(AuditedLoss(partial(ppo_loss, config=actor)))
    worker.set_loss_fn(loss)
    data = batch(run, worker, verl)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds, losses, norms = [], [], []
    for index in range(run["warm_up"] + run["steps"]):
        spent, metrics = step(worker, data)
        found = next(found for found in everywhere(metrics) if found)
        losses.append(number(found["loss"]))
        norms.append(number(found["grad_norm"]))
        if index >= run["warm_up"]:
            seconds.append(max(everywhere(spent)))
    gigabytes = [torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9]
    memory = everywhere(gigabytes)
    if run.get("profile"):
        profile(worker, data, Path(run["profile"]))
    return {
        "step_s": statistics.median(seconds),
        "steps_s": seconds,
        "loss": losses,
        "grad_norm": norms,
        "peak_memory_gb": max(rank[0] for rank in memory),
        "peak_reserved_gb": max(rank[1] for rank in memory),
        "peaks_gb": memory,
        "finite": all(map(math.isfinite, losses + norms)),
    }


def profile(worker: TrainingWorker, data, out: Path) -> None:
    """The kernels of one step on every rank, with their summed device time in ms, into `out`; rank 0's time line beside
    it, as Chrome's and Perfetto's trace format."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        seconds, _ = step(worker, data)
    rows = [
        {"name": event.key[:200], "ms": event.self_device_time_total / 1e3, "calls": event.count}
        for event in found.key_averages()
        if event.self_device_time_total and event.device_type != torch.autograd.DeviceType.CPU
    ]
    rows.sort(key=lambda row: -row["ms"])
    ranks = everywhere(rows[:60])
    if torch.distributed.get_rank() == 0:
        head = provenance.made(("torch", "verl", "megatron-core"), device=provenance.gpus())
        provenance.write(out, head, {"step_s": seconds, "kernels": ranks[0], "other_ranks": ranks[1:]})
        found.export_chrome_trace(str(out.with_suffix(".trace.json.gz")))


def release(worker: TrainingWorker) -> None:
    """Give the engine's device memory back. Hooks on autograd's C++ nodes keep Megatron's wrapper alive, so that
    collecting garbage is not enough: whatever is large and still there gets its storage taken."""
    for holder in (worker.engine, worker):
        holder.__dict__.clear()
    if not CUDA:
        gc.collect()
        return
    from megatron.core.parallel_state import get_global_memory_buffer
    from transformer_engine.pytorch.module import base

    get_global_memory_buffer().buffer.clear()
    getattr(base, "_dummy_wgrads", {}).clear()
    gc.collect()
    for found in gc.get_objects():
        # Bytes are the libraries' workspaces.
        if not isinstance(found, torch.Tensor) or not found.is_cuda or found.dtype == torch.uint8:
            continue
        if found.untyped_storage().nbytes() > LARGE:
            found.untyped_storage().resize_(0)
    torch.cuda.empty_cache()


def main(group_file: str, out_file: str) -> None:
    group = json.loads(Path(group_file).read_text())
    out = Path(out_file)
    initialize_global_process_group()
    first = torch.distributed.get_rank() == 0
    engine.register_engines()
    fsdp.register()
    if CUDA:
        from retool_mcore.backends.megatron import cuda_kernels

        cuda_kernels.install()

    def say(line: dict) -> None:
        if first:
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")

    worker = built = None
    for run in group["runs"]:
        say({"id": run["id"], "event": "start"})
        key = json.dumps([run[name] for name in ("shape", "layers", "settings", "init")], sort_keys=True)
        start = time.perf_counter()
        if key != built:
            if worker is not None:
                if "sp" not in group["layout"]:
                    release(worker)
                worker = None
                left = max(everywhere(torch.cuda.memory_allocated() / 1e9))
                if left > LEFT_OVER_GB:
                    say({"id": run["id"], "event": "again", "left_gb": left})
                    torch.distributed.barrier()
                    torch.distributed.destroy_process_group()
                    sys.exit(AGAIN)
            # verl's FSDP engine always reads a file.
            weights = run["init"] == "checkpoint" or "sp" in group["layout"]
            name = f"{run['model']}-{run['layers']}-{'weights' if weights else 'random'}"
            folder = write_model(Path(group["models"]) / name, run["shape"], run["layers"], weights)
            worker, verl = build(run, group["layout"], folder)
            built = key
        ready = time.perf_counter()
        row = measure(run, worker, verl)
        row |= {"build_s": ready - start, "measure_s": time.perf_counter() - ready}
        say({"id": run["id"], "event": "end", **row})
    torch.distributed.barrier()
    os._exit(0)  # Megatron's and NCCL's teardown can take longer than a run


if __name__ == "__main__":
    main(*sys.argv[1:])
