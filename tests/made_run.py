"""A run's folder with trajectories as RL writes them, made without engines."""

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
    build_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    for step in range(1, steps + 1):
        write_step(folder / "rl" / "trajectories", step, [record(step, row) for row in range(rows)])
    return folder
