"""Evaluation: the rollout's own episodes on a vLLM engine, k samples a problem; no Ray, no Megatron.

Reads a Hugging Face folder (every checkpoint holds one). Finished trajectories are appended to the result folder as
they come, so a killed evaluation goes on where it stopped; the metrics follow at the end, as JSON and in TensorBoard.
What the folder may hold when this starts, the launcher has seen to (train/evaluation.py).

A sample in which the sandbox itself fails is sampled once more. If it fails again, the sandbox has to run a program
of ours: if it cannot, the evaluation stops, and goes on where it is started again; if it can, the failure is the
sample's own doing, which counts as wrong and is reported (`sandbox_errors` in metrics.json).
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from retool_mcore.backends.vllm.engine import build_engine, sampler
from retool_mcore.data.formats import Format
from retool_mcore.data.policy_format import load_format
from retool_mcore.data.schema import rows_of
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.metrics.behaviour import behaviour, by_source, histograms
from retool_mcore.metrics.pass_k import problem_scores
from retool_mcore.metrics.validation import mean_and_error
from retool_mcore.recipes.sandbox_errors import with_sandbox
from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.rewards.sample import of_row, sample_of
from retool_mcore.rewards.scoring import score_or_crash
from retool_mcore.rollout.episode import LIMITS, Limits, run_episode
from retool_mcore.rollout.trajectory import Trajectory, answer_text
from retool_mcore.rollout.turn_beats import TURNS
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.state import heartbeat
from retool_mcore.state.checkpoints import policy_step
from retool_mcore.state.identity import policy_files
from retool_mcore.tools.toolbox import create_toolbox
from retool_mcore.train.evaluation import METRICS, TRAJECTORIES, grading, read_finished, rule, write_finished
from retool_mcore.train.long_prompts import fitting_files

RESULTS = "results.json"  # the accuracies as lm-eval writes them, next to METRICS


async def run_all(config, folder: Path) -> list[dict]:
    """Every problem k times; one record (metrics/records.py) a trajectory.

    `folder` holds samples of this very evaluation alone (train/evaluation.py). Those that were graded by another rule
    are graded again; where none is missing, no engine starts.
    """
    inputs = config.data.validation_files, config.policy_path, folder / "prompts"
    files = await asyncio.to_thread(fitting_files, config, *inputs)  # it starts a loop of its own
    rows = rows_of(files)[: config.problems]
    fmt = load_format(config, config.policy_path)
    path = folder / TRAJECTORIES
    asked = {(i, s) for i in range(len(rows)) for s in range(config.k)}
    records = [record for record in read_finished(path) if (record["index"], record["sample"]) in asked]
    records = regraded(records, rows, config, fmt, path)
    done = {(record["index"], record["sample"]) for record in records}
    todo = sorted(asked - done)
    if todo:
        records += await sample_all(config, rows, todo, fmt, path)
    return sorted(records, key=lambda record: (record["index"], record["sample"]))


def regraded(records: list[dict], rows: list[dict], config, fmt: Format, path: Path) -> list[dict]:
    """The records with grades by the evaluation's rule; `path` is written anew where that changes one."""
    wanted, first = grading(config), FirstScores(config, len(records))
    others = [place for place, record in enumerate(records) if record.get("graded_as") != wanted]
    for place in others:
        record = records[place]
        records[place] = record | grade(Trajectory.from_record(record), rows[record["index"]], config, fmt)
        first.check(records[place])
    if others:
        write_finished(path, records)
        print(f"graded {len(others)} samples again: {wanted}", flush=True)
    return records


def grade(trajectory: Trajectory, row: Mapping, config, fmt: Format) -> dict:
    """Return the reward (`score`) and the verdict of a trajectory as columns of its record.

    `graded_as` is the rule that they are by. Where scoring failed, `error` says why and the rule is marked, for the
    next start to score the sample again.
    """
    sample = sample_of(
        trajectory.to_record(),
        acc=0.0,
        ground_truth=str(row["reward_model"]["ground_truth"]),
        text=fmt.tokenizer.decode(trajectory.response_ids, skip_special_tokens=True),
        policy_text=answer_text(trajectory, fmt.tokenizer),
        prefill=fmt.prefill(trajectory.prompt_ids),
        step=policy_step(Path(config.policy_path)),
        **of_row(row["data_source"], row["extra_info"]),
    )
    scored = score_or_crash(sample, rule(config))
    outcome = {"score": scored.reward, "acc": scored.acc, "pred": scored.pred, "graded_by": scored.graded_by}
    by = grading(config)
    return outcome | {"error": scored.error, "graded_as": f"{by}, failed" if scored.error else by}


class FirstScores:
    """Ends an evaluation whose reward fails for each of the first samples, up to 8 or all `total`."""

    def __init__(self, config, total: int):
        self.name, self.left = config.recipe.reward.name, min(8, total)

    def check(self, record: Mapping) -> None:
        """Raises UserError at the last of them."""
        if not record["error"]:
            self.left = 0
        elif self.left > 0:
            self.left -= 1
            if self.left == 0:
                raise UserError(f"the reward {self.name} fails for every sample so far: {record['error']}.")


async def sample_all(config, rows: list[dict], todo: list[tuple[int, int]], fmt: Format, path: Path) -> list[dict]:
    """Sample `todo`, pairs of a problem's index and a sample's number; each record is appended to `path` at once."""
    tokenizer = fmt.tokenizer
    limits = Limits(**{name: config.rollout[name] for name in LIMITS})
    engine = build_engine(config)
    sandbox = create_sandbox(config.sandbox)
    section, timeout_s = OmegaConf.to_container(config.toolbox, resolve=True), config.sandbox.timeout_s
    toolbox = create_toolbox(section, sandbox=sandbox, timeout_s=timeout_s, error_lines=limits.error_lines)
    shared: dict[str, Any] = {"fmt": fmt, "tokenizer": tokenizer, "limits": limits, "timeout_s": timeout_s}
    places = asyncio.Semaphore(config.parallel.max_num_seqs)
    total = len(rows) * config.k
    before = total - len(todo)

    async def one(index: int, sample: int) -> dict:
        row = rows[index]
        called = fmt.name != "none" or row["extra_info"].get("environment")
        tools = toolbox.for_row(row["extra_info"]) if called else None
        async with places:
            with TURNS.trajectory():
                trajectory = await with_sandbox(
                    lambda: run_episode(
                        fmt.prompt_ids(row["prompt"], tools.schemas if tools else None),
                        generate=TURNS.timed(sampler(engine, config, fmt, index, sample), limits.max_turn_tokens),
                        sandbox=None,
                        tools=tools,
                        row=row["extra_info"],
                        **shared,
                    ),
                    sandbox,
                )
        where = {"index": index, "sample": sample, "data_source": row["data_source"]}
        where["ground_truth"] = row["reward_model"]["ground_truth"]
        # A long response takes a while; other episodes go on meanwhile.
        return trajectory.to_record() | where | await asyncio.to_thread(grade, trajectory, row, config, fmt)

    heartbeat.beat(heartbeat.TRAINER, heartbeat.EVALUATION, before, total, before=before)
    records: list[dict] = []
    first = FirstScores(config, len(todo))
    try:
        with open(path, "a") as file:
            for finished in asyncio.as_completed([one(*pair) for pair in todo]):
                records.append(await finished)
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
                first.check(records[-1])
                done = before + len(records)
                heartbeat.beat(heartbeat.TRAINER, heartbeat.EVALUATION, done, total)
                print(f"evaluated {done} of {total}", flush=True)
    finally:
        engine.shutdown()
        await toolbox.close()
        await sandbox.close()
    return records


def accuracies(records: list[dict], k: int) -> dict:
    """{"k", "accuracy": {source: {"mean@k": ...}}, "standard_error": alike, over the source's problems (None of one
    alone), "problems": {source: their number}}."""
    accuracy: dict[str, dict[str, float]] = {}
    errors: dict[str, dict[str, float | None]] = {}
    problems: dict[str, int] = {}
    for name, values in problem_scores(records, k, same=equivalent).items():
        source, metric = name.rsplit("/", 1)
        mean, error = mean_and_error(values)
        accuracy.setdefault(source, {})[metric] = mean
        errors.setdefault(source, {})[metric] = None if isnan(error) else error
        problems[source] = len(values)
    return {"k": k, "accuracy": accuracy, "standard_error": errors, "problems": problems}


def summarise(records: list[dict], k: int) -> dict:
    """`accuracies`, and "reward": {source: mean}, "behaviour": {source: {...}}, "samples", "sandbox_errors",
    "scoring_errors"."""
    figures = {source: behaviour(own) for source, own in by_source(records).items()}
    lost = sum(record["finish"] == Status.SANDBOX for record in records)
    counts = {"samples": len(records), "sandbox_errors": lost}
    counts["scoring_errors"] = sum(bool(record.get("error")) for record in records)
    rewards = {source: float(np.mean([r["score"] for r in own])) for source, own in by_source(records).items()}
    return accuracies(records, k) | counts | {"reward": rewards, "behaviour": figures}


def harness_results(metrics: Mapping, config) -> dict:
    """Return the accuracies in the form of lm-eval's results.json, a task a data source: acc is mean@k, and best@k and
    maj@k follow."""
    k = metrics["k"]
    results: dict[str, dict] = {}
    for source, scores in metrics["accuracy"].items():
        results[source] = {"alias": source}
        for title, name in {"acc": f"mean@{k}", "best": f"best@{k}", "maj": f"maj@{k}"}.items():
            error = metrics["standard_error"][source][name]
            results[source] |= {
                f"{title},none": scores[name],
                f"{title}_stderr,none": "N/A" if error is None else error,
            }
    counted = {source: {"original": count, "effective": count} for source, count in metrics["problems"].items()}
    sampling = {name: config[name] for name in ("temperature", "top_p")} | {"repeats": k}
    return {
        "results": results,
        "n-shot": dict.fromkeys(results, 0),
        "n-samples": counted,
        "higher_is_better": {source: {"acc": True} for source in results},
        "configs": {source: {"task": source, "generation_kwargs": sampling} for source in results},
        "config": {"model": "retool", "model_args": {"pretrained": metrics["policy"]}},
        "model_source": "retool",
        "model_name": metrics["policy"],
    }


def main(config_path: str) -> None:
    config = OmegaConf.load(config_path)
    folder = Path(config_path).parent
    records = asyncio.run(run_all(config, folder))
    policy = Path(config.policy_path)
    metrics = summarise(records, config.k) | {"step": policy_step(policy), "policy": str(policy)}
    metrics["policy_files"] = policy_files(policy)
    write_atomically(folder / RESULTS, json.dumps(harness_results(metrics, config), indent=2) + "\n")
    write_atomically(folder / METRICS, json.dumps(metrics, indent=2))
    with SummaryWriter(folder / "tensorboard") as board:
        for source, values in [*metrics["accuracy"].items(), *metrics["behaviour"].items()]:
            for name, value in values.items():
                board.add_scalar(f"eval/{source}/{name}", value, metrics["step"])
        for source, value in metrics["reward"].items():
            board.add_scalar(f"eval/{source}/reward", value, metrics["step"])
        for source, own in by_source(records).items():
            for name, sample in histograms(own).items():
                board.add_histogram(f"eval/{source}/{name}", np.asarray(sample, np.float64), metrics["step"])
    if lost := metrics["sandbox_errors"]:
        print(f"{lost} of {len(records)} samples count as wrong: a program of theirs failed the sandbox, which works")
    if failed := metrics["scoring_errors"]:
        reason = next(record["error"] for record in records if record.get("error"))
        print(f"{failed} of {len(records)} samples count as wrong: their scoring failed, first with {reason}")
    for source, values in metrics["accuracy"].items():
        shown = values | {"reward": metrics["reward"][source]}
        print(f"{source}: " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items()))


if __name__ == "__main__":
    main(sys.argv[1])
