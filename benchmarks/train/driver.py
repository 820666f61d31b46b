"""The driver's part of a step: how long it takes and how much memory it needs, with all engines taken away.

    python -m benchmarks.train.driver                                     # 8,192 trajectories of 10,240 tokens
    python -m benchmarks.train.driver --trajectories 256 --tokens 2048    # a small one

`update` of train/rl.py runs on made-up trajectories with tool calls; in the engines' place stand random columns.
What would be sent to the trainer's workers is serialised; its bytes stand next to those of verl's own rows for the same
passes (whole sequences and positions, int64). Memory is the peak beyond what the trajectories alone need.
"""

import argparse
import pickle
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from benchmarks import provenance
from benchmarks.train.made_records import make_records
from retool_mcore.backends.verl.wire import sent, whole
from retool_mcore.rollout.samples import Group, Sample
from retool_mcore.state import alarms
from retool_mcore.train.batch import Batch, shuffled
from retool_mcore.train.replay_step import row_of
from retool_mcore.train.rl import update
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings

RECIPE = {
    "advantage": "grpo",
    "normalise_by_std": True,
    "critic": {"warmup_steps": 0},
    "policy_loss": "vanilla",
    "loss_aggregation": "token-mean",
    "loss_scale": None,
    "observation_weight": 0.0,
    "group_reward": {"name": None, "args": {}},
    "filters": {"all_equal": False, "accuracy": None, "samples": [], "refill_limit": 10},
}
CORRECTION = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}
N = 16  # trajectories a prompt
PASS = ["response_mask"]
UPDATE = ["response_mask", "old_log_probs", "advantages", "is_weights", "span_kind"]


class Engines:
    """Random columns in place of Megatron; what would be sent is counted."""

    dp, n_gpus, has_reference, has_critic = 16, 32, False, False

    def __init__(self) -> None:
        self.bytes = {"ours": 0, "verl": 0}
        self.wire_s = 0.0

    def log_probs(self, batch: Batch, part: int, parts: int) -> None:
        self._send(batch, PASS)
        noise = torch.randn(int(batch.lengths.sum())) * 0.01
        batch["old_log_probs"] = batch["rollout_log_probs"] + noise * batch["response_mask"]
        batch["entropy"] = noise.abs()

    def update(self, batch: Batch) -> dict[str, float]:
        self._send(batch, UPDATE)
        return {"actor/grad_norm": 0.5}

    def _send(self, batch: Batch, columns: list[str]) -> None:
        clock = time.perf_counter()
        rows = sent(batch, columns)
        pickle.dumps(rows, protocol=5)
        self.wire_s += time.perf_counter() - clock
        self.bytes["ours"] += _bytes(rows)
        self.bytes["verl"] += _bytes(whole(rows))


def _bytes(rows: TensorDict) -> int:
    """The bytes of all nested columns."""
    return sum(column.values().nbytes for column in rows.values() if getattr(column, "is_nested", False))


def groups_of(trajectories: int, tokens: int) -> list[Group]:
    """Made-up groups, in the form that rollout workers return."""
    groups: list[Group] = []
    for number in range(trajectories // N):
        records = make_records(N, tokens, seed=number)
        for record in records:
            record["uid"], record["index"] = f"{number:06d}", number
        outcome = {"overlong": 0.0, "drop": "", "graded_by": "text"}
        samples = [Sample.of_record(record | outcome) for record in records]
        groups.append(Group(f"{number:06d}", row_of(records[0]), 1, samples))
    return groups


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def resident_gb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def measure(trajectories: int, tokens: int, folder: Path) -> dict:
    """Seconds by phase, bytes on the wire and memory of one step."""
    before = resident_gb()
    groups = groups_of(trajectories, tokens)
    held, made = resident_gb() - before, sum(sample.length for group in groups for sample in group.samples)
    cfg = Settings(
        batch=trajectories // N, mini_batch=trajectories // N // 4, n=N, steps=1, seed=1, recipe=RECIPE,
        correction=CORRECTION,
    )  # fmt: skip
    retool = OmegaConf.create(
        {"stage_dir": str(folder), "trajectories": str(folder / "trajectories"), "keep_trajectory_bytes": None,
         "texts": {"every": None, "count": 0}, "rotation": {"keep_last": 1}, "save_minutes": None,
         "alarms": alarms.IGNORED}
    )  # fmt: skip
    engines, run = Engines(), Run(cfg, retool, _NoLog(), 0, identity=None)
    cut = cfg.cut(engines.dp)
    start, seconds = peak_gb(), {}
    for step in run.steps():
        clock = time.perf_counter()
        batch, _ = shuffled(groups, cut, cfg.seed, step)
        seconds["mini-batches"] = time.perf_counter() - clock
        metrics = update(cfg, engines, run, batch, cut, step, 0)
        clock = time.perf_counter()
        run.record(step, [batch], metrics, _Recorded(engines))
        seconds["metrics"] = time.perf_counter() - clock
        run.recorder.flush()
        seconds["trajectories to disk"] = time.perf_counter() - clock - seconds["metrics"]
    run.close()
    names = {"adv": "advantages, correction", "audit": "audit"}
    seconds |= {shown: run.timing[name] for name, shown in names.items()} | {"wire": engines.wire_s}
    return {
        "tokens": made,
        "seconds": seconds,
        "wire_bytes_a_token": {name: size / made for name, size in engines.bytes.items()},
        "trajectories_gb": held,
        "peak_gb": peak_gb() - start,
    }


class _NoLog:
    logger: dict = {}

    def log(self, data: dict, step: int) -> None:
        pass


class _Recorded:
    """What `Run.record` asks of engines."""

    tokenizer = None

    def __init__(self, engines: Engines):
        self.n_gpus = engines.n_gpus

    def gpu_samples(self) -> list:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=10_240, help="of each response (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=provenance.RESULTS / "driver.json")
    args = parser.parse_args()
    if args.trajectories % (4 * N):
        sys.exit(f"--trajectories={args.trajectories}: expected a multiple of {4 * N}.")
    made = provenance.made(("torch", "verl", "numpy"))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.trajectories, args.tokens, Path(folder))
    print(
        f"{args.trajectories:,} trajectories, {found['tokens'] / 1e6:.1f} M tokens, on {made['machine']['cores']} cores"
    )
    for name, value in found["seconds"].items():
        print(f"  {name:24s} {value:8.2f} s")
    print(f"  {'all':24s} {sum(found['seconds'].values()):8.2f} s")
    ours, verl = (found["wire_bytes_a_token"][name] for name in ("ours", "verl"))
    print(f"wire: {ours:.1f} bytes a token in both passes, verl's rows {verl:.1f}: {verl / ours:.1f} times as many")
    print(f"memory: {found['trajectories_gb']:.2f} GB of trajectories, a peak of {found['peak_gb']:.2f} GB more")
    provenance.write(args.output, made, found)


if __name__ == "__main__":
    main()
