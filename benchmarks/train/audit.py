"""What watching a step costs: the mask audit, the behaviour metrics and the trajectory store, at a real step's size.

    python -m benchmarks.train.audit                                # a 1/32 of a step of 8,192 x 16,384 tokens, scaled
    python -m benchmarks.train.audit --trajectories 64 --tokens 4096

A step of 8,192 trajectories of 16,384 tokens does not fit a small machine, so a part is measured and scaled: all of it
is linear in tokens. The figure to compare with is the step itself; of that the least possible is known, the arithmetic
of log-probabilities (2 FLOPs a parameter and token) and update (6) of a 32B policy on 16 H100 at 40 % of their peak,
with nothing for the rollout. The alternative to the vectorised audit is the same check as a loop over tokens.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import provenance
from retool_mcore.metrics.audit import Columns, audit, span_mask
from retool_mcore.metrics.behaviour import behaviour
from retool_mcore.metrics.records import read_columns, read_step, step_files, write_step
from retool_mcore.metrics.timeline import chrome_trace, shares
from retool_mcore.rollout.wire import from_wire, to_wire

TRAJECTORIES, TOKENS = 8192, 16384
PARAMETERS, GPUS, FLOPS = 32.8e9, 16, 0.4 * 989e12
LISTED = 10_000
LIST = ("step", "uid", "sample", "score", "acc", "turns", "finish", "tokens", "num_calls", "statuses")  # columns


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


def make_columns(records: list[dict]) -> Columns:
    def flat(name):
        return np.concatenate([record[name] for record in records])

    return Columns(
        offsets=np.concatenate([[0], np.cumsum([len(record["response_ids"]) for record in records])]),
        response_ids=flat("response_ids").astype(np.int64),
        response_mask=flat("response_mask").astype(np.int64),
        loss_mask=flat("response_mask").astype(np.int64),
        advantages=flat("advantages"),
        is_weights=flat("is_weights"),
        rollout_log_probs=flat("logprobs"),
        old_log_probs=flat("old_log_probs"),
    )


def loop(columns: Columns, records: list[dict]) -> int:
    """The audit's central check, one token at a time."""
    leaked, position = 0, 0
    for record in records:
        for span in record["spans"]:
            for token in range(span["start"], span["end"]):
                here = position + token
                same = columns.response_ids[here] == record["response_ids"][token]
                same &= columns.rollout_log_probs[here] == record["logprobs"][token]
                weighted = columns.response_mask[here] != 0 or columns.loss_mask[here] != 0
                leaked += not same or (weighted and span["kind"] != "policy")
        position += len(record["response_ids"])
    return leaked


def timeline(records: list[dict]) -> None:
    """Shares and trace of a step that rolled out for 200 s."""
    timing = {"step": 300.0, "gen": 200.0, "old_log_prob": 20.0, "update_actor": 70.0, "update_weights": 5.0}
    shares(timing, records)
    json.dumps(chrome_trace(1, 1.7e9, timing, records))


def seconds(work, repeat: int, clock=time.process_time) -> float:
    """The least of `repeat` runs; in processor time by default, which other work on the machine changes little."""
    times = []
    for _ in range(repeat):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def measure(arguments) -> dict:
    records = make_records(arguments.trajectories, arguments.tokens)
    columns = make_columns(records)
    texts = [to_wire(without_columns(record)) for record in records]
    few = records[: max(1, arguments.trajectories // 16)]
    few_columns = make_columns(few)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        cost = {
            "unpack records": seconds(lambda: [from_wire(text) for text in texts], arguments.repeat),
            "audit": seconds(lambda: audit(columns, records, span_mask(columns, records)), arguments.repeat),
            "behaviour metrics": seconds(lambda: behaviour(records), arguments.repeat),
            "timeline": seconds(lambda: timeline(records), arguments.repeat),
            "write (beside the training)": seconds(lambda: write_step(folder / "big", 1, records), arguments.repeat),
        }
        size = (folder / "big" / "step_000001.parquet").stat().st_size
        one = [len(records) // 2]
        row = seconds(lambda: read_step(folder / "big/step_000001.parquet", one), arguments.repeat, time.perf_counter)
        small = make_records(LISTED // 25, 512)
        for step in range(1, 26):
            write_step(folder / "many", step, small)
        files = step_files(folder / "many").values()
        listed = seconds(
            lambda: [read_columns(f, LIST).to_pylist() for f in files], arguments.repeat, time.perf_counter
        )
        one_loop = seconds(lambda: loop(few_columns, few), 1)
    tokens = arguments.trajectories * arguments.tokens
    return {
        "tokens": tokens,
        "seconds": cost,
        "ratio_loop_to_audit": one_loop * len(records) / len(few) / cost["audit"],
        "bytes_per_token": size / tokens,
        "read_one_trajectory_s": row,
        "list_10000_s": listed,
    }


def without_columns(record: dict) -> dict:
    """What the agent loop packs: plain lists, none of the trainer's columns."""
    own = ("prompt_ids", "response_ids", "logprobs", "spans", "calls", "turn_notes", "turns", "finish", "started")
    return {name: record[name] for name in own}


def report(found: dict) -> dict:
    """Scaled to a whole step, with its share of the least step."""
    scale = TRAJECTORIES * TOKENS / found["tokens"]
    least_step_s = 8 * PARAMETERS * TRAJECTORIES * TOKENS / (GPUS * FLOPS)
    scaled = {name: value * scale for name, value in found["seconds"].items()}
    share = (scaled["audit"] + scaled["unpack records"]) / least_step_s
    print(
        f"{found['tokens']:,} tokens measured, scaled to {TRAJECTORIES:,} x {TOKENS:,}; least step {least_step_s:.0f} s"
    )
    for name, value in scaled.items():
        print(f"  {name:30} {value:8.1f} s  {100 * value / least_step_s:6.3f} % of the step")
    ratio, read_ms = found["ratio_loop_to_audit"], 1e3 * found["read_one_trajectory_s"]
    print(f"audit with its records: {100 * share:.3f} % of a step, {ratio:.0f} x faster than a loop")
    everything = sum(value for name, value in scaled.items() if not name.startswith("write")) / least_step_s
    print(f"everything that a step waits for: {100 * everything:.3f} %")
    print(f"{found['bytes_per_token']:.1f} bytes a token; one trajectory read in {read_ms:.0f} ms")
    print(f"10,000 trajectories of 25 steps listed in {found['list_10000_s']:.2f} s (wall time)")
    return {
        "scaled_seconds": scaled,
        "least_step_s": least_step_s,
        "audit_share_of_step": share,
        "share_of_step": everything,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=TRAJECTORIES // 32)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--repeat", type=int, default=3, help="the least of so many runs counts")
    arguments = parser.parse_args()
    head = provenance.made(("numpy", "pyarrow"))
    found = measure(arguments)
    found |= report(found)
    provenance.write("audit", head, found)


if __name__ == "__main__":
    main()
