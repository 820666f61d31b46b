"""Export: a Megatron checkpoint to a Hugging Face folder, proven to be the same model. Started by torchrun.

The checkpoint is loaded into Megatron under the run's own parallel layout, written out through the bridge, and read
back by transformers in a process of its own: log-probabilities of the whole vocabulary on a probe batch must agree, up
to what rounding alone makes of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from omegaconf import OmegaConf

from retool_mcore.backends.check import assert_adapters
from retool_mcore.backends.megatron.export_weights import (
    is_first_of_last_stage,
    load_engine,
    megatron_log_probs,
    write_weights,
)
from retool_mcore.backends.verl.sft_trainer import process_group
from retool_mcore.errors import UserError
from retool_mcore.state.checkpoints import policy_step
from retool_mcore.state.identity import policy_files
from retool_mcore.train.hf_log_probs import probe_batch
from retool_mcore.train.push import push, write_card


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    source, output, done = Path(config.policy_path).resolve(), Path(config.output), False
    with process_group() as first:
        engine = load_engine(config.verl, source)
        part = output.with_name(output.name + ".part")
        if first:
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part, ignore=shutil.ignore_patterns("*.safetensors*", "adapter"))
        torch.distributed.barrier()
        write_weights(engine, part)
        torch.distributed.barrier()
        vocab_size = engine.model_config.hf_config.vocab_size
        log_probs = megatron_log_probs(engine, probe_batch(vocab_size, **config.probe), vocab_size)
        if log_probs is not None and is_first_of_last_stage():
            finish(config, part, output, log_probs)
            done = True
    if done and config.push is not None:  # once no rank waits for another
        print(f"pushed to {push(output, config.push, config.push_private)}")


def finish(config, part: Path, output: Path, log_probs: torch.Tensor) -> None:
    """Compare with transformers on the exported folder and, when they agree, move it to `output`."""
    with tempfile.TemporaryDirectory() as scratch:
        reference = Path(scratch) / "hf.pt"
        # A process of its own: the CPU adapter of torch leaves transformers' rotary buffers uninitialised.
        command = [sys.executable, "-m", "retool_mcore.train.hf_log_probs", str(part), str(reference)]
        command += [json.dumps(OmegaConf.to_container(config.probe)), config.model.dtype]
        subprocess.run(command, check=True, env=plain_env())
        rounded, exact = torch.load(reference)
    difference, limit = compare(log_probs, rounded, exact, config.max_difference)
    print(f"log-probabilities of Megatron and Hugging Face differ by {difference:.2e} (limit {limit:.2e})")
    if not difference <= limit:
        message = f"log-probabilities differ by {difference:.2e}, and may by {limit:.2e}"
        raise UserError(f"the exported model is not the trained one: {message}.")
    step = policy_step(Path(config.policy_path))
    report = {"policy": config.policy, "step": step, "log_prob_difference": difference, "limit": limit}
    report["policy_files"] = policy_files(Path(config.policy_path).resolve())
    (part / "export.json").write_text(json.dumps(report, indent=2))
    write_card(part, config)
    shutil.rmtree(output, ignore_errors=True)
    os.replace(part, output)
    print(f"exported step {step} of {config.policy} to {output}")


def compare(found: torch.Tensor, rounded: torch.Tensor, exact: torch.Tensor, allowed: float) -> tuple[float, float]:
    """(how far `found` is from `exact`, how far it may be), of log-probabilities (sequences, tokens, vocab) float32.

    `rounded` is the exported model's in the dtype of its training, `exact` in float32. Without rounding the largest
    difference counts. Otherwise the mean, and rounding may double it: of the largest a router that rounds to another
    expert makes anything.
    """
    difference, rounding = (found - exact).abs(), (rounded - exact).abs()
    if rounding.max() == 0:
        return difference.max().item(), allowed
    return difference.mean().item(), allowed + 2 * rounding.mean().item()


def plain_env() -> dict[str, str]:
    """The environment without torchrun's rendezvous and without the CPU platform."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "VERL_PLATFORM")
    return {name: value for name, value in os.environ.items() if name not in dropped}


if __name__ == "__main__":
    main(sys.argv[1])
