"""A run of the arithmetic problems for pictures and browser tests, made without engines: nothing in it is a result.

Its policy learns over 30 steps to let a program compute. In step 17 most programs run into the time limit, and the
reward falls; RL began a second time at step 12.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step
from retool_mcore.metrics.timeline import chrome_trace, write_trace

STEPS, GROUPS, SAMPLES = 30, 8, 4
BAD_STEP, RESUMED = 17, 12
TOKENIZER = build_tokenizer()
CHAT = "<|im_start|>user\nCompute {}.<|im_end|>\n<|im_start|>assistant\n"
CALL = "<code>\n```python\n{}\n```\n</code>"
SEEN = "\n<interpreter>\n{}\n</interpreter>\n"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def trajectory(step: int, row: int, problem: str, random: np.random.Generator, skill: float) -> dict:
    """One of five kinds: a program that works; one that fails and is put right, by two errors; one too slow; none."""
    truth = str(eval(problem))
    slow, failing = (0.7, 0.1) if step == BAD_STEP else (0.02, 0.5 - 0.4 * skill)
    kind = random.choice(["slow", "name", "syntax", "none", "good"], p=[slow, *shares(failing, skill, 1 - slow)])
    programs = {
        "good": [(f"print({problem})", "success", truth)],
        "name": [(f"print(total + {problem})", "error", "NameError: name 'total' is not defined")],
        "syntax": [(f"print(({problem})", "error", "SyntaxError: '(' was never closed")],
        "slow": [(f"while True:\n    x = {problem}", "timeout", "The program ran longer than 5 s.")],
        "none": [],
    }[kind]
    if kind in ("name", "syntax") and random.random() < 0.3 + 0.6 * skill:
        programs.append((f"x = {problem}\nprint(x)", "success", truth))
    right = bool(programs) and programs[-1][1] == "success"
    texts = [part for code, _, output in programs for part in (CALL.format(code), SEEN.format(output))]
    texts.append(f"\\boxed{{{truth if right else int(truth) + random.integers(1, 90)}}}<|im_end|>")
    pieces = [ids(text) for text in texts]
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    spans = [
        {"kind": "observation" if n % 2 else "policy", "start": end - len(piece), "end": end}
        for n, (piece, end) in enumerate(zip(pieces, ends, strict=True))
    ]
    mask = np.concatenate([np.full(len(piece), n % 2 == 0) for n, piece in enumerate(pieces)])
    sampled = np.where(mask, -random.exponential(1.3 - skill, len(mask)), 0).astype(np.float32)
    engine, tool = (
        random.uniform(0.3, 0.9, len(spans)).round(3),
        [5.0 if own[1] == "timeout" else 0.1 for own in programs],
    )
    notes = [
        {"programs": int(n < len(programs)), "boxed": n == len(programs), "fakes": [], "generate_s": float(engine[n])}
        | {"tool_s": tool[n] if n < len(programs) else 0.0}
        for n in range(len(programs) + 1)
    ]
    blank = {"malformed": False, "value": None, "truncated": False, "tool": "code_interpreter", "arguments": None}
    calls = [
        blank
        | {"code": code, "status": status, "duration_s": tool[n], "turn": n, "start": spans[2 * n]["start"]}
        | {"stdout": f"{output}\n" if status == "success" else "", "stderr": "" if status == "success" else output}
        for n, (code, status, output) in enumerate(programs)
    ]
    return {
        "step": step,
        "uid": f"{step:02d}-{row // SAMPLES}",
        "sample": row % SAMPLES,
        "index": (step * GROUPS + row // SAMPLES) % 60,
        "data_source": "arithmetic",
        "score": 1.0 if right else -1.0,
        "acc": float(right),
        "pred": texts[-1].partition("{")[2].partition("}")[0],
        "ground_truth": truth,
        "turns": len(programs) + 1,
        "finish": "answer",
        "generate_s": float(engine[: len(programs) + 1].sum()),
        "tool_s": float(sum(tool)),
        "started": 0.0,
        "prompt_ids": ids(CHAT.format(problem)),
        "response_ids": np.concatenate(pieces).astype(np.int32),
        "response_mask": mask,
        "logprobs": sampled,
        "old_log_probs": np.where(mask, sampled - np.abs(random.normal(0, 1e-4, len(mask))), 0).astype(np.float32),
        "advantages": mask * np.float32(0.7 if right else -0.7),
        "spans": spans,
        "calls": calls,
        "turn_notes": notes,
    }


def shares(failing: float, skill: float, whole: float) -> list[float]:
    """Of two errors, no program, and a program that works; together `whole`."""
    parts = np.array([0.6 * failing, 0.4 * failing, 0.5 * (1 - skill), 0.1 + skill])
    return (whole * parts / parts.sum()).tolist()


def figures(records: list[dict], step: int, random: np.random.Generator, skill: float) -> Iterator[tuple[str, float]]:
    """RL's metrics of a step that the overview draws."""
    with_code = [own for own in records if own["calls"]]
    failed = [own for own in with_code if own["calls"][0]["status"] != "success"]
    passed = [call["status"] == "success" for own in with_code for call in own["calls"]]
    accuracy, seconds = np.mean([own["acc"] for own in records]), 14 + random.uniform(0, 3) + 20 * (step == BAD_STEP)
    yield from {"critic/score/mean": 2 * accuracy - 1, "reward/accuracy": accuracy}.items()
    yield "behaviour/code_ratio", len(with_code) / len(records)
    yield "behaviour/calls", np.mean([len(own["calls"]) for own in records])
    yield "behaviour/tool_success_rate", np.mean(passed)
    yield (
        "behaviour/self_correction_rate",
        np.mean([own["calls"][-1]["status"] == "success" for own in failed or with_code]),
    )
    yield "response_length/mean", np.mean([len(own["response_ids"]) for own in records])
    yield "actor/entropy", 1.3 - 0.8 * skill + random.normal(0, 0.03)
    yield "mismatch/kl", 1e-4 * np.exp(random.normal(0, 0.4))
    yield "actor/grad_norm", 0.4 * np.exp(random.normal(0, 0.2)) * (12 if step == BAD_STEP else 1)
    yield "perf/tokens_per_second", 3200 + random.normal(0, 150) - 1600 * (step == BAD_STEP)
    yield "timing_s/step", seconds
    tools = 20 / seconds if step == BAD_STEP else 0.06
    parts = {"generation": 0.42, "rollout_rest": 0.05, "log_probs": 0.12, "update": 0.28, "weight_push": 0.04}
    parts |= {"checkpoint": 0.04, "other": 0.05}
    yield from {f"timing_share/{part}": (1 - tools) * share for part, share in parts.items()}.items()
    yield "timing_share/tools", tools
    if step % 5 == 0:
        yield from {"val/accuracy": 0.9 * skill + 0.02, "val/accuracy_se": 0.035}.items()


def lines(steps: dict[int, dict]) -> str:
    return "".join(
        json.dumps({"step": n, "data": {k: float(v) for k, v in own.items()}}) + "\n" for n, own in steps.items()
    )


def make_run(folder: Path, seed: int = 1, rate: float = 1.0) -> Path:
    """Write the run; `rate`: how fast its policy learns."""
    random = np.random.default_rng(seed)
    for part in ("model", "rl/metrics", "sft/metrics"):
        (folder / part).mkdir(parents=True)
    TOKENIZER.save(str(folder / "model" / "tokenizer.json"))
    numbers = np.random.default_rng(0).integers(11, 99, (60, 3))
    problems = [f"{a}*{b}+{c}" for a, b, c in numbers.tolist()]
    steps = {}
    for step in range(1, STEPS + 1):
        skill = 1 - float(np.exp(-rate * step / 9))
        rows = range(GROUPS * SAMPLES)
        asked = [problems[(step * GROUPS + row // SAMPLES) % 60] for row in rows]
        records = [trajectory(step, row, asked[row], random, skill) for row in rows]
        write_step(folder / "rl" / "trajectories", step, records)
        steps[step] = dict(figures(records, step, random, skill))
        timing = {
            name.removeprefix("timing_s/"): value for name, value in steps[step].items() if name == "timing_s/step"
        }
        rollout = max(own["generate_s"] + own["tool_s"] for own in records)
        timing |= {"gen": rollout, "old_log_prob": 1.8, "update_actor": 4.1, "update_weights": 0.6}
        busy = [(0.5 * n, float(n > 2 * rollout) or 0.3) for n in range(int(2 * (rollout + 6.5)))]
        write_trace(folder / "rl" / "trace", step, chrome_trace(step, 0.0, timing, records, [busy]), keep=20)
    losses = {n: {"train/loss": 0.3 + 3 * np.exp(-n / 12) + random.normal(0, 0.03)} for n in range(1, 61)}
    losses = {
        n: own | {"train/grad_norm": 1 + np.exp(-n / 20), "perf/tokens_per_second": 7000} for n, own in losses.items()
    }
    for n in range(10, 61, 10):
        losses[n]["val/loss"] = losses[n]["train/loss"] + 0.05
    (folder / "sft" / "metrics" / "attempt_001.jsonl").write_text(lines(losses))
    for attempt, own in ((1, range(1, RESUMED + 1)), (2, range(RESUMED, STEPS + 1))):
        path = folder / "rl" / "metrics" / f"attempt_{attempt:03d}.jsonl"
        path.write_text(lines({step: steps[step] for step in own}))
    alarm = {"step": BAD_STEP, "alarm": "gradient_norm", "value": 12.1, "bound": 10.0, "answer": "tell", "time": 0.0}
    (folder / "rl" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    (folder / "rl" / "config.yaml").write_text(f"name: {folder.name}\nseed: {seed}\nrun_dir: {folder}\nrate: {rate}\n")
    (folder / "sft" / "COMPLETE").touch()
    return folder
