"""Evaluation: the rollout's own episodes on a vLLM engine, k samples a problem; no Ray, no Megatron.

Reads a Hugging Face folder (every checkpoint holds one). Finished trajectories are appended to the result folder as
they come, so a killed evaluation goes on where it stopped; the metrics follow at the end, as JSON and in TensorBoard.

A sample in which the sandbox itself fails is sampled once more. If it fails again, the sandbox has to run a program
of ours: if it cannot, the evaluation stops, and goes on where it is started again; if it can, the failure is the
sample's own doing, which counts as wrong and is told (`sandbox_errors` in metrics.json).
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from retool_mcore.backends.vllm.engine import build_engine, sampler
from retool_mcore.data.policy_format import load_format
from retool_mcore.data.schema import rows_of
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.metrics.behaviour import behaviour, by_source, histograms
from retool_mcore.metrics.pass_k import pass_at_k
from retool_mcore.recipes.sandbox_errors import with_sandbox
from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.rewards.verdict import verdict
from retool_mcore.rollout.episode import LIMITS, Limits, run_episode
from retool_mcore.rollout.trajectory import answer_text
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.state.checkpoints import policy_step
from retool_mcore.tools.toolbox import create_toolbox

TRAJECTORIES = "trajectories.jsonl"


def read_finished(path: Path) -> list[dict]:
    """Records of an evaluation that was stopped; a last line that was cut by the stop is dropped from the file."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
        write_atomically(path, b"".join(lines).decode())
    return [json.loads(line) for line in lines]


def check_finished(records: list[dict], rows: list[dict], folder: Path) -> None:
    """Refuse a folder whose trajectories are of other problems, as after a change of the data. Raises UserError."""
    for record in records:
        row = rows[record["index"]] if record["index"] < len(rows) else None
        if row is None or row["reward_model"]["ground_truth"] != record["ground_truth"]:
            raise UserError(
                f"{folder} holds trajectories of other problems (number {record['index']}): remove it, or give this "
                "evaluation a label=NAME."
            )


async def run_all(config, folder: Path) -> list[dict]:
    """Every problem k times; one record (metrics/records.py) a trajectory."""
    rows = rows_of(config.data.validation_files)[: config.problems]
    fmt = load_format(config, config.policy_path)
    tokenizer = fmt.tokenizer
    limits = Limits(**{name: config.rollout[name] for name in LIMITS})
    path = folder / TRAJECTORIES
    records = read_finished(path)
    check_finished(records, rows, folder)
    done = {(record["index"], record["sample"]) for record in records}
    todo = [(i, s) for i in range(len(rows)) for s in range(config.k) if (i, s) not in done]
    engine = build_engine(config)
    sandbox = create_sandbox(config.sandbox)
    section, timeout_s = OmegaConf.to_container(config.toolbox, resolve=True), config.sandbox.timeout_s
    toolbox = create_toolbox(section, sandbox=sandbox, timeout_s=timeout_s, error_lines=limits.error_lines)
    shared: dict[str, Any] = {"fmt": fmt, "tokenizer": tokenizer, "limits": limits, "timeout_s": timeout_s}
    places = asyncio.Semaphore(config.parallel.max_num_seqs)

    async def one(index: int, sample: int) -> dict:
        row = rows[index]
        tools = None if fmt.name == "none" else toolbox.for_row(row["extra_info"])
        async with places:
            trajectory = await with_sandbox(
                lambda: run_episode(
                    fmt.prompt_ids(row["prompt"], tools.schemas if tools else None),
                    generate=sampler(engine, config, fmt, index, sample),
                    sandbox=None,
                    tools=tools,
                    row=row["extra_info"],
                    **shared,
                ),
                sandbox,
            )
        truth = row["reward_model"]["ground_truth"]
        # A long response takes a while; other episodes go on meanwhile.
        outcome = await asyncio.to_thread(
            verdict,
            policy_text=answer_text(trajectory, tokenizer),
            text=tokenizer.decode(trajectory.response_ids, skip_special_tokens=True),
            ground_truth=truth,
            policy=config.answer,
            decimals=config.decimals,
        )
        where = {"index": index, "sample": sample, "data_source": row["data_source"], "ground_truth": truth}
        return trajectory.to_record() | where | outcome

    try:
        with open(path, "a") as file:
            for finished in asyncio.as_completed([one(*pair) for pair in todo]):
                records.append(await finished)
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
                print(f"evaluated {len(records)} of {len(rows) * config.k}", flush=True)
    finally:
        engine.shutdown()
        await toolbox.close()
        await sandbox.close()
    return sorted(records, key=lambda record: (record["index"], record["sample"]))


def summarise(records: list[dict], k: int) -> dict:
    """{"accuracy": {source: {"mean@k": ...}}, "behaviour": {source: {...}}, "k", "samples", "sandbox_errors"}."""
    accuracy: dict[str, dict[str, float]] = {}
    for name, value in pass_at_k(records, k, same=equivalent).items():
        source, metric = name.rsplit("/", 1)
        accuracy.setdefault(source, {})[metric] = value
    figures = {source: behaviour(own) for source, own in by_source(records).items()}
    lost = sum(record["finish"] == Status.SANDBOX for record in records)
    return {"k": k, "samples": len(records), "sandbox_errors": lost, "accuracy": accuracy, "behaviour": figures}


def main(config_path: str) -> None:
    config = OmegaConf.load(config_path)
    folder = Path(config_path).parent
    records = asyncio.run(run_all(config, folder))
    metrics = summarise(records, config.k) | {"step": policy_step(Path(config.policy_path))}
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2))
    with SummaryWriter(folder / "tensorboard") as board:
        for source, values in [*metrics["accuracy"].items(), *metrics["behaviour"].items()]:
            for name, value in values.items():
                board.add_scalar(f"eval/{source}/{name}", value, metrics["step"])
        for source, own in by_source(records).items():
            for name, sample in histograms(own).items():
                board.add_histogram(f"eval/{source}/{name}", np.asarray(sample, np.float64), metrics["step"])
    if lost := metrics["sandbox_errors"]:
        print(f"{lost} of {len(records)} samples count as wrong: a program of theirs failed the sandbox, which works")
    for source, values in metrics["accuracy"].items():
        print(f"{source}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))


if __name__ == "__main__":
    main(sys.argv[1])
