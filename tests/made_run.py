"""A run's folder with trajectories and metrics as the stages write them, made without engines."""

import json
from pathlib import Path

import numpy as np

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step

BAD, GOOD = "print(7 * 6", "import math\nprint(7 * 6)"


def call(code: str, status: str, start: int, turn: int, **output: str) -> dict:
    return {
        "code": code,
        "malformed": False,
        "status": status,
        "stdout": output.get("stdout", ""),
        "stderr": output.get("stderr", ""),
        "value": None,
        "duration_s": 0.25,
        "turn": turn,
        "start": start,
        "truncated": False,
    }


def record(step: int, row: int, **changes) -> dict:
    """A trajectory whose first program fails and whose second one gives the answer."""
    tokenizer = build_tokenizer()
    parts = [
        ("policy", f"<code>\n```python\n{BAD}\n```\n</code>"),
        ("observation", "\n<interpreter>\nSyntaxError: '(' was never closed\n</interpreter>\n"),
        ("policy", f"<code>\n```python\n{GOOD}\n```\n</code>"),
        ("observation", "\n<interpreter>\n42\n</interpreter>\n"),
        ("policy", "\\boxed{42}"),
    ]
    ids: list[int] = []
    spans = []
    for kind, text in parts:
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        spans.append({"kind": kind, "start": len(ids), "end": len(ids) + len(piece)})
        ids += piece
    mask = np.zeros(len(ids), bool)
    for span in spans[::2]:
        mask[span["start"] : span["end"]] = True
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    note = {"programs": 1, "boxed": False, "fakes": [], "generate_s": 0.5, "tool_s": 0.25}
    return {
        "step": step,
        "uid": f"group{row // 4}",
        "sample": row % 4,
        "index": row // 4,
        "data_source": "arithmetic",
        "score": 1.0 if row % 2 == 0 else -1.0,
        "acc": float(row % 2 == 0),
        "pred": "42",
        "ground_truth": "42",
        "turns": 3,
        "finish": "answer",
        "generate_s": 1.5,
        "tool_s": 0.5,
        "started": 0.0,
        "prompt_ids": tokenizer.encode("7*6=", add_special_tokens=False).ids,
        "response_ids": np.array(ids, np.int32),
        "response_mask": mask,
        "logprobs": logprobs,
        "old_log_probs": logprobs * np.float32(1.5),
        "advantages": mask * np.float32(0.7),
        "spans": spans,
        "calls": [
            call(BAD, "error", spans[0]["start"], 0, stderr="SyntaxError: '(' was never closed\n"),
            call(GOOD, "success", spans[2]["start"], 1, stdout="42\n"),
        ],
        "turn_notes": [note, note, note | {"programs": 0, "boxed": True, "tool_s": 0.0}],
    } | changes


def make_run(folder: Path, steps: int = 2, rows: int = 8) -> Path:
    """A run with `steps` steps of `rows` trajectories in groups of four."""
    (folder / "model").mkdir(parents=True)
    (folder / "rl" / "trajectories").mkdir(parents=True)
    build_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    for step in range(1, steps + 1):
        write_step(folder / "rl" / "trajectories", step, [record(step, row) for row in range(rows)])
    return folder


def metrics_line(step: int, **values: float) -> str:
    return json.dumps({"step": step, "data": {name.replace("__", "/"): value for name, value in values.items()}}) + "\n"


def rl_metrics(step: int, lift: float = 0.0) -> dict[str, float]:
    """Of one step, by the names of the trainer with __ for /; held-back problems every fifth step."""
    share = 1 - 1 / (1 + 0.1 * step) + lift
    found = {
        "critic__score__mean": 2 * share - 1,
        "reward__accuracy": share,
        "behaviour__code_ratio": 0.5 + share / 2,
        "behaviour__calls": 1 + share,
        "behaviour__tool_success_rate": 0.8 + 0.15 * share,
        "behaviour__self_correction_rate": 0.4 + share / 2,
        "response_length__mean": 200 - 90 * share,
        "actor__entropy": 1.2 - share / 2,
        "mismatch__kl": 1e-4 * (1 + step % 3),
        "actor__grad_norm": 0.3 + 0.02 * (step % 5),
        "perf__tokens_per_second": 900 + 10 * (step % 7),
        "timing_s__step": 10 + step % 4,
        "timing_share__generation": 0.5,
        "timing_share__tools": 0.1,
        "timing_share__update": 0.3,
        "timing_share__other": 0.1,
    }
    return found | ({"val__accuracy": share - 0.05, "val__accuracy_se": 0.04} if step % 5 == 0 else {})


def add_metrics(run: Path, steps: int, sft_steps: int = 4, lift: float = 0.0, seed: int = 1) -> Path:
    """Metrics of both stages; RL began again at step 3, had an alarm in step 2 and went back from there."""
    for stage, count in (("sft", sft_steps), ("rl", steps)):
        folder = run / stage / "metrics"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"name: {run.name}\nseed: {seed}\nrun_dir: {run}\nlr: 1\n"
        (run / stage / "config.yaml").write_text(text)
        for attempt, own in ((1, range(1, min(count, 4) + 1)), (2, range(3, count + 1))):
            values = (
                rl_metrics if stage == "rl" else (lambda step, _: {"train__loss": 2 / step, "train__grad_norm": 1.0})
            )
            lines = [metrics_line(step, **values(step, lift)) for step in own]
            if lines and not (stage == "sft" and attempt == 2):
                (folder / f"attempt_{attempt:03d}.jsonl").write_text("".join(lines))
    if steps >= 2:
        alarm = {"step": 2, "alarm": "gradient_norm", "value": 11.5, "bound": 10.0, "answer": "back", "time": 0}
        (run / "rl" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
        (run / "rl" / "back.json").write_text(json.dumps([{"step": 2, "from": 1, "skip": 8, "said": "alarm"}]))
    return run


def add_evaluation(run: Path, label: str, step: int) -> Path:
    """Three samples of one problem, and their figures."""
    folder = run / "eval" / label
    folder.mkdir(parents=True)
    lines = []
    for row in range(3):
        made = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in record(0, row).items()}
        lines.append(json.dumps({k: v for k, v in made.items() if k not in ("step", "uid", "old_log_probs")}))
    (folder / "trajectories.jsonl").write_text("\n".join(lines) + "\n")
    figures = {"accuracy": {"arithmetic": {"mean@3": 0.667}}, "behaviour": {"arithmetic": {"code_ratio": 1.0}}}
    (folder / "metrics.json").write_text(json.dumps({"step": step, "samples": 3} | figures))
    return run
