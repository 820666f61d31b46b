"""Run folders for `retool explain`: healthy ones, and the same with a cause planted into them. No engine is started."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import yaml
from pyarrow import parquet

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step

STEPS, GROUPS, SAMPLES = 8, 6, 4
ROWS = GROUPS * SAMPLES
PROGRAM = "<code>\n```python\n{}\n```\n</code>"
OUTPUT = "\n<interpreter>\n{}\n</interpreter>\n"
RISING = (0.38, 0.55, 0.65, 0.76, 0.8, 0.86, 0.86, 0.88)  # the quickstart's first steps
FLAT = (0.5,) * STEPS
CONFIG: dict[str, Any] = {
    "recipe": {"answer": "boxed", "batch": GROUPS},
    "train": {"batch": GROUPS, "mini_batch": 2, "lr": 2.5e-4},
    "rollout": {"format": "text", "max_response_tokens": 320},
    "parallel": {"device": "cuda"},
}
METRICS = {
    "actor/entropy": 0.5, "actor/grad_norm": 0.4, "actor/lr": 2.5e-4, "actor/ppo_kl": 4e-4, "actor/pg_clipfrac": 2e-3,
    "mismatch/kl": 1e-5, "training/off_policy/trajectory_staleness_worst/mean": 0.0, "timing_share/tools": 0.06,
    "timing_share/no_gpu_work": 0.2, "rollout_corr/rollout_is_eff_sample_size": 0.99, "actor/broken_updates": 0,
}  # fmt: skip


@functools.cache
def ids(text: str) -> tuple[int, ...]:
    return tuple(_tokenizer().encode(text, add_special_tokens=False).ids)


@functools.cache
def _tokenizer():
    return build_tokenizer()


def call(code: str, error: str = "", **changes) -> dict:
    return {
        "code": code,
        "malformed": False,
        "status": "error" if error else "success",
        "stdout": "" if error else "42\n",
        "stderr": error,
        "value": None,
        "duration_s": 0.1,
        "turn": 0,
        "start": 0,
        "truncated": False,
    } | changes


def record(step: int, row: int, right: bool, code: str | None, prose: str | None = None, error: str = "") -> dict:
    """One trajectory: a program (None: none) and then an answer, or `prose`."""
    problem = (step * GROUPS + row // SAMPLES) % 30
    asked, truth = f"{problem + 11}*{problem + 13}+{problem}", str((problem + 11) * (problem + 13) + problem)
    pred = truth if right else str(int(truth) + 1)
    parts = [] if code is None else [("policy", PROGRAM.format(code)), ("observation", OUTPUT.format(error or pred))]
    parts.append(("policy", f"\\boxed{{{pred}}}" if prose is None else prose))
    tokens: list[int] = []
    spans = []
    for kind, text in parts:
        spans.append({"kind": kind, "start": len(tokens), "end": len(tokens) + len(ids(text))})
        tokens += ids(text)
    note = {"programs": int(code is not None), "boxed": code is None, "fakes": [], "generate_s": 0.5, "tool_s": 0.1}
    notes = [note] if code is None else [note, note | {"programs": 0, "boxed": True, "tool_s": 0.0}]
    return {
        "step": step,
        "uid": f"{step}-{row // SAMPLES}",
        "sample": row % SAMPLES,
        "index": problem,
        "data_source": "arithmetic",
        "score": 1.0 if right else -1.0,
        "acc": float(right),
        "pred": pred,
        "ground_truth": truth,
        "turns": len(notes),
        "finish": "answer",
        "generate_s": 1.0,
        "tool_s": 0.1,
        "started": 0.0,
        "prompt_ids": list(ids(f"<|im_start|>user\nCompute {asked}.<|im_end|>\n<|im_start|>assistant\n")),
        "response_ids": np.array(tokens, np.int32),
        "logprobs": np.full(len(tokens), -0.5, np.float32),
        "old_log_probs": np.full(len(tokens), -0.5, np.float32),
        "spans": spans,
        "calls": [] if code is None else [call(code, error)],
        "turn_notes": notes,
        "versions": [{"version": step - 1, "start": 0, "end": len(tokens)}],
    }


@dataclass
class Plan:
    """How a run is made. change: applied to each record; metrics: of a step, over METRICS; config: over CONFIG."""

    accuracy: Sequence[float] = RISING
    code_share: Sequence[float] | None = None  # None: as the accuracy
    change: Callable[[dict], dict] = lambda own: own
    metrics: Callable[[int], Mapping[str, float]] = lambda step: {}
    config: Mapping[str, Any] = field(default_factory=dict)


def make(folder: Path, plan: Plan, seed: int = 0) -> Path:
    """Write the run: trajectories, metrics and configuration of RL."""
    random = np.random.default_rng(seed)
    (folder / "model").mkdir(parents=True)
    _tokenizer().save(str(folder / "model" / "tokenizer.json"))
    steps = {}
    shares = plan.code_share or [min(1.0, share + 0.05) for share in plan.accuracy]
    for step, (share, coded) in enumerate(zip(plan.accuracy, shares, strict=True), start=1):
        order = random.permutation(ROWS)
        right, code = order[: round(share * ROWS)], order[: round(coded * ROWS)]
        records = [
            plan.change(record(step, row, row in right, f"print({row} * {step + 1})" if row in code else None))
            for row in range(ROWS)
        ]
        write_step(folder / "rl" / "trajectories", step, records)
        own = {
            "reward/accuracy": float(np.mean([one["acc"] for one in records])),
            "critic/score/mean": float(np.mean([one["score"] for one in records])),
        }
        steps[step] = METRICS | own | dict(plan.metrics(step))
    write_metrics(folder / "rl", steps)
    config = {name: dict(section) for name, section in CONFIG.items()}
    for name, value in plan.config.items():
        section, _, key = name.rpartition(".")
        config.setdefault(section, {})[key] = value
    (folder / "rl" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def make_sft(folder: Path, losses: Sequence[float], validation: Mapping[int, float], **data: str) -> Path:
    """Write the run: metrics and configuration of SFT."""
    steps: dict[int, dict[str, float]] = {
        step: {"train/loss": loss, "train/lr": 1e-4} for step, loss in enumerate(losses, start=1)
    }
    for step, loss in validation.items():
        steps[step]["val/loss"] = loss
    write_metrics(folder / "sft", steps)
    (folder / "sft" / "config.yaml").write_text(yaml.safe_dump({"train": {"lr": 1e-4}, "data": data}))
    return folder


def write_metrics(stage: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    (stage / "metrics").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": dict(data)}) + "\n" for step, data in steps.items()]
    (stage / "metrics" / "attempt_001.jsonl").write_text("".join(lines))


def end(stage: Path, outcome: str, log: str = "") -> None:
    """Write how the stage's attempt ended."""
    (stage / "attempts.jsonl").write_text(json.dumps({"attempt": 1, "seconds": 9.0, "outcome": outcome}) + "\n")
    (stage / "log.txt").write_text(log)


def problems(path: Path, texts: Sequence[str], column: str = "prompt") -> str:
    """Write a data file of these questions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [[{"role": "user", "content": text}] for text in texts]
    parquet.write_table(pyarrow.table({column: rows}), path)
    return str(path)
