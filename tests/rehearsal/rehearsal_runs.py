"""Stages in the layout of sixteen GPUs as sixteen processes, and their records (recorded_engine.py) beside others'."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.forked_python import PYTHON
from retool_mcore.config import compose
from retool_mcore.runner import template
from tests.support.slurm.slurm_jobs import ENV, Job

LAYOUT = "2x8-80g"  # TP8 x PP2
RETOOL = str(Path(sys.executable).with_name("retool"))
EXACT = 1e-5  # of a tensor's norm

_MEGATRON = "parallel.megatron.override_transformer_config"
# What differs from the layout of GPUs because there are none, and nothing else: test_only_keys_of_kernels_differ.
KERNELS = {
    "parallel.device": "cpu",
    "parallel.dtype": "float32",  # in which sums over other layouts agree to 1e-5
    "parallel.megatron.vanilla_mbridge": "true",  # megatron-bridge imports CUDA's kernels
    f"{_MEGATRON}.attention_backend": "unfused",
    f"{_MEGATRON}.masked_softmax_fusion": "false",
    f"{_MEGATRON}.gradient_accumulation_fusion": "false",
    f"{_MEGATRON}.apply_rope_fusion": "false",
    f"{_MEGATRON}.bias_activation_fusion": "false",  # sixteen processes would compile it
    "parallel.megatron.override_mcore_model_config.fused_log_probs": "false",
    "parallel.megatron.override_mcore_model_config.half_logits": "false",
}
# As thin as the model: several micro-batches a step, the data read by the ranks themselves, no network to be judged.
THIN = {
    "parallel.micro_batch_tokens": "256",
    "parallel.loader_workers": "0",
    "parallel.min_bus_bandwidth_gbs": "null",
    "parallel.ray.num_cpus": "64",  # logical, as GPUs are
    "parallel.ray.num_gpus": "16",
}
_NEW = {f"{_MEGATRON}.masked_softmax_fusion"}  # verl's default, which the layout does not name
DATA = (
    "data.arithmetic.sft=64",
    "data.arithmetic.train=16",
    "data.arithmetic.validation=8",
    "data.arithmetic.held_back=2",
    "data.sft.batch=8",
    "data.sft.steps=2",
    "data.sft.lr=1e-5",
    "data.sft.min_lr=0",
    "data.sft.warmup_steps=0",
    "data.sft.save_every=1",
    "data.sft.eval_every=100",
    "data.sft.max_length=256",
)
FOLLOWS = (  # (keys of verl, the key of the layout that they are set by)
    (r"^verl\.(engine|(actor_rollout_ref\.(actor|ref)|critic)\.megatron)\.", "parallel.megatron."),
    (r"^(model|parallel\.megatron|verl\..*)\.dtype$", "parallel.dtype"),
    (r"^verl\..*max_token_len_per_gpu$", "parallel.micro_batch_tokens"),
    (r"^verl\.data\.(dataloader_)?num_workers$", "parallel.loader_workers"),
    (r"^verl\.ray_kwargs\.ray_init\.", "parallel.ray."),
    (r"^verl\.trainer\.device$", "parallel.device"),
)
ONE_MACHINE = {"parallel.nodes": "1", "parallel.gpus_per_node": "16"}
ONE_PROCESS = {
    **{f"parallel.{name}": "1" for name in ("nodes", "gpus_per_node", "tp", "pp", "ep", "rollout_tp")},
    "parallel.sequence_parallel": "false",
    "parallel.ray.num_gpus": "1",
}


def words(values: dict[str, str]) -> list[str]:
    return [f"{'+' if name in _NEW else ''}{name}={value}" for name, value in values.items()]


def layout(changed: dict[str, str] | None = None) -> list[str]:
    """The flagship's, thin; `changed`: other keys."""
    return [f"parallel={LAYOUT}", *words(KERNELS | THIN | (changed or {}))]


def flat(node, prefix: str = "") -> dict[str, object]:
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: value for name, part in node.items() for key, value in flat(part, f"{prefix}.{name}").items()}


def different_keys(stage: str, *given: str) -> dict[str, tuple]:
    """Of the stage's whole configuration {key: (with GPUs, here)}. What follows from another key (FOLLOWS), and has its
    two values, is not told again."""
    gpus, here = (
        {
            name.lstrip("."): value
            for name, value in flat(OmegaConf.to_container(compose(stage, [*chosen, *given]))).items()
        }
        for chosen in ([f"parallel={LAYOUT}"], layout())
    )
    found = {n: (gpus.get(n), here.get(n)) for n in sorted(gpus.keys() | here.keys()) if gpus.get(n) != here.get(n)}
    for pattern, source in FOLLOWS:
        for name in [n for n in found if n not in KERNELS | THIN]:
            if found[name] == found.get(re.sub(pattern, source, name)):
                del found[name]
    return found


def retool(*args: str, record: Path | None = None) -> str:
    """Run the command, forked from the session's template as its stages are; what it printed."""
    return forked(RETOOL, *args, env={} if record is None else {"REHEARSAL_FOLDER": str(record)})


def forked(*words: str, env: dict[str, str] | None = None) -> str:
    env = stage_env({"parallel": {"device": "cpu"}}) | (env or {})
    done = subprocess.run([os.environ[PYTHON], *words], env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def submitted(cluster, record: Path, runs: Path, *overrides: str) -> None:
    """SFT of the run `t` in `runs` as a job over both nodes of Slurm, to its end."""
    folders = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[2])))
    env = {"REHEARSAL_FOLDER": str(record), "VERL_USE_EXTERNAL_MODULES": "recorded_engine", "PYTHONPATH": folders}
    env["TORCHDYNAMO_DISABLE"] = "1"  # as conftest.py
    words = (RETOOL, "submit", "sft", "name=t", f"runs_dir={runs}", *overrides)
    with pytest.MonkeyPatch.context() as patch:
        for name in template.VARIABLES:  # each node has a template of its own
            patch.delenv(name, raising=False)
        said = cluster.run(*words, env=ENV | env, timeout_s=300)
    Job(cluster, re.search(r"^sft: job (\d+)", said, re.MULTILINE)[1], "sft", runs).finish(timeout_s=1800)


def read(record: Path, name: str) -> dict:
    return torch.load(record / f"{name}.pt")


def furthest(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest difference of any tensor, of its norm, and whose it is."""
    assert found.keys() == wanted.keys() and found
    return max((float((found[n] - w).norm() / w.norm().clamp(min=1e-30)), n) for n, w in wanted.items())


def tell_memory(what: str, record: dict) -> None:
    taken = record["memory"]
    print(
        f"{what}: {len(taken)} processes take {sum(one['pss'] for one in taken) / 1e9:.1f} GB (sum of PSS; of RSS "
        f"{sum(one['rss'] for one in taken) / 1e9:.1f} GB, of what each has for itself "
        f"{sum(one['own'] for one in taken) / 1e9:.1f} GB)",
        flush=True,
    )
