"""Made-up trajectories with tool calls, in the form in which the agent loop notes them."""

import numpy as np


def make_records(count: int, tokens: int, turns: int = 6, seed: int = 0) -> list[dict]:
    """Trajectories as the agent loop notes them: `turns` policy turns, programs and observations between them."""
    rng = np.random.default_rng(seed)
    observed = tokens // (8 * turns)
    records = []
    for number in range(count):
        cuts = np.sort(rng.choice(np.arange(observed + 1, tokens - 1), turns - 1, replace=False))
        spans, calls, start = [], [], 0
        for cut in cuts:
            end = max(int(cut), start + observed + 1)
            if end + observed >= tokens - 1:
                break
            spans += [{"kind": "policy", "start": start, "end": end}]
            spans += [{"kind": "observation", "start": end, "end": end + observed}]
            calls.append(call(start, len(calls)))
            start = end + observed
        spans.append({"kind": "policy", "start": start, "end": tokens})
        mask = np.zeros(tokens, bool)
        for span in spans:
            mask[span["start"] : span["end"]] = span["kind"] == "policy"
        note = {"programs": 1, "boxed": False, "fakes": [], "generate_s": 30.0, "tool_s": 0.3}
        records.append(
            {
                "prompt_ids": rng.integers(0, 150_000, 256).astype(np.int32),
                "response_ids": (rng.zipf(1.2, tokens) % 150_000).astype(np.int32),
                "logprobs": (-rng.exponential(0.3, tokens) * mask).astype(np.float32),
                "spans": spans,
                "calls": calls,
                "turn_notes": [note] * (len(calls) + 1),
                "turns": len(calls) + 1,
                "finish": "answer",
                "generate_s": 180.0,
                "tool_s": 1.5,
                "started": 1.7e9,
                "step": 1,
                "uid": f"{number // 16:032x}",
                "sample": number % 16,
                "index": number // 16,
                "data_source": "dapo_math_17k",
                "score": 1.0,
                "acc": float(number % 2),
                "pred": "42",
                "ground_truth": "42",
                "response_mask": mask,
                "old_log_probs": np.zeros(tokens, np.float32),
                "advantages": np.where(mask, 0.5, 0).astype(np.float32),
                "is_weights": mask.astype(np.float32),
            }
        )
        record = records[-1]
        record["old_log_probs"] = record["logprobs"] + (rng.normal(0, 0.01, tokens) * mask).astype(np.float32)
    return records


def call(start: int, turn: int) -> dict:
    return {
        "code": "import sympy\n" * 20,
        "malformed": False,
        "status": "success" if turn % 2 else "error",
        "stdout": "42\n" * 20,
        "stderr": "",
        "value": None,
        "duration_s": 0.3,
        "turn": turn,
        "start": start,
        "truncated": False,
    }
