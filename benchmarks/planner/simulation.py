"""Simulated steps beside measured ones: all whole steps of RL that were measured on GPUs, and `rollout.live`'s cache.

    python -m benchmarks.planner.simulation

Rows are in benchmarks/results (rl_step*, live), but for whole steps of stock verl on four GPUs, which stand here with
their source. The first step of a run compiles kernels and is left out. Trajectories are drawn as the scripted policy
draws them (benchmarks/rollout/scripted_policy.py), as many tokens as were measured. Two constants of
retool_mcore/planner/scale.py are fitted, to the rows marked so: `LOG_PROBS_FACTOR` to the passes of stock verl on
4 x H200, `REST_S` to what is left of one step.
"""

import argparse
import json
import random
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import provenance
from benchmarks.planner import tail
from benchmarks.planner.tail import FULL, OURS, STOCK
from benchmarks.rollout.live import made, size
from retool_mcore.planner import MACHINES, SHAPES, Batch, Layout, Shape, rollout, scale
from retool_mcore.planner.memory import memory
from retool_mcore.planner.search import Problem, planned
from retool_mcore.planner.serving import Trajectory
from retool_mcore.planner.simulate import Order, Simulation

RESULT = provenance.RESULTS / "simulation.json"
GOAL = 0.10
FILES = {"rl_step": OURS, "rl_step_again": OURS, "rl_step_overlap": FULL, "rl_step_stock": STOCK}
FITTED = ("qwen2.5-7b 4 GPUs stock", "qwen2.5-32b x32 4 GPUs stock", "rl_step_again step 3")
# Stock verl 0.9.1 on 4 x H200, sync: seconds of a whole step; sequences, tokens of one, layout, vLLM's TP. With torch
# 2.11, vllm 0.24.0, megatron-core 0.18.2; prompts of 18 to 30 tokens, all responses of full length, no tools. Phases
# and memory of the two large ones: benchmarks/results/plan_baseline.json.
TINY = Shape(4, 512, 1024, 8, 2, 64, 512, False)
SEVEN, THIRTY = SHAPES["qwen2.5-7b"], SHAPES["qwen2.5-32b"]
HALF = Shape(**{**THIRTY.__dict__, "layers": 32})
FOUR = {
    "512 wide, 4 layers, 4 GPUs stock": (3.7, TINY, 128, 280, {"tp": 2, "pp": 2, "dp": 1}, 2),
    "qwen2.5-7b 4 GPUs stock": (34.7, SEVEN, 256, 2072, {"tp": 2, "dp": 2}, 1),
    "qwen2.5-32b x32 4 GPUs stock": (38.6, HALF, 128, 2072, {"tp": 4}, 2),
}


def chain(calls: bool, tokens: int, count: int) -> list[scale.Turns]:
    """`count` trajectories of `tokens` altogether, as the scripted policy's chain makes them: a response ends at 2,048
    tokens, or after a turn with probability 1 / 3.5; turns of about 400 tokens, so that the sum is right. With calls
    an observation of 120 tokens (63,505 of 530 calls) follows each but the last turn; a prompt has 55."""

    def drawn(mean: float) -> list[scale.Turns]:
        draw, found = random.Random(1), []
        for _ in range(count):
            turns, room = [(55.0, 0.0)], 2048.0
            while room > 0:
                given = 120.0 if calls and turns[-1][1] else 0.0
                sampled = min(room - given, 1 + draw.expovariate(1 / mean))
                if sampled < 1:
                    break
                if calls and turns[-1][1]:
                    turns.append((given, sampled))
                else:
                    turns[-1] = (55.0, turns[-1][1] + sampled)
                room -= sampled + given
                if draw.random() < 1 / 3.5:
                    break
            found.append((turns, [0.004] * (len(turns) - 1)))
        return found

    low, high = 10.0, 4000.0
    while high - low > 0.01:
        middle = (low + high) / 2
        enough = sum(sum(map(sum, turns)) for turns, _ in drawn(middle)) > tokens
        low, high = (low, middle) if enough else (middle, high)
    return drawn(high)


def measured() -> list[tuple[str, float, dict, Shape, dict, int, list[scale.Turns], int]]:
    """(row, seconds, its phases, shape, layout, GPUs, trajectories, vLLM's TP)"""
    rows = []
    for name, (seconds, shape, count, tokens, layout, tp) in FOUR.items():
        turns = [([(24, tokens - 24)], [])] * count
        rows.append((name, seconds, {}, shape, {"micro_batch_tokens": 16384} | layout, 4, turns, tp))
    for file, layout in FILES.items():
        found = json.loads((provenance.RESULTS / f"{file}.json").read_text())
        for step in found["steps"][1:]:
            phases = {name: step[f"timing_s/{key}"] for name, key in PHASES.items()}
            turns = chain("sandbox/runs" in step, int(step["perf/total_num_tokens"]), 256)
            rows.append((f"{file} step {step['step']}", step["timing_s/step"], phases, SEVEN, layout, 2, turns, 1))
    return rows


PHASES = {"generation": "gen", "log-probs": "old_log_prob", "update": "update_actor", "push": "update_weights"}


def played(shape: Shape, layout: dict, gpus: int, turns: list[scale.Turns], tp: int) -> tuple[float, dict]:
    """Seconds of the simulated step, and of its phases."""
    machine = MACHINES["H200-141"]
    batch = Batch(tuple(round(sum(map(sum, trajectory))) for trajectory, _ in turns))
    problem = Problem(shape, 1, machine.__class__(**{**machine.__dict__, "gpus_per_node": gpus}), batch)
    parts = Layout(**layout)
    plan = planned(problem, parts, memory(shape, parts, batch), rollout.engine(shape, machine, tp, 0.4))
    log_probs = scale.LOG_PROBS_FACTOR * plan.seconds["log-probs"]
    order = Order(1, 16, log_probs + plan.seconds["update"] + scale.REST_S)
    groups = ([Trajectory(*trajectory)] for trajectory in turns)
    step = Simulation(problem, plan, order, gpus // tp, groups).step()
    return step.seconds, {"generation": step.waited, "log-probs": log_probs, "update": plan.seconds["update"]}


def caches() -> list[dict]:
    """The replicas of benchmarks.rollout.live: a cache of 454,000 tokens for 2,048 trajectories, 16 times smaller."""
    trajectories = made(2048, 16, seed=1)
    mean, cache = sum(map(size, trajectories)) / 2048, 454_000 // 16
    found = []
    for row in json.loads((provenance.RESULTS / "live.json").read_text())["rows"]:
        if row["policy"] == "priority":
            continue
        draw = random.Random(1)
        groups = (
            [Trajectory([(given, own) for own, given in turns], [draw.expovariate(10) for _ in turns[1:]])]
            for turns in trajectories
        )
        shape, machine = SHAPES["qwen2.5-1.5b"], MACHINES["H100-80"]
        problem = Problem(shape, 1, machine, Batch(tuple(map(size, trajectories))))
        plan = planned(problem, Layout(), memory(shape, Layout(), problem.batch), rollout.Rollout(1, 0.3, cache))
        live = int(cache / mean) if row["policy"] == "bounded" else 2048
        spent = Simulation(problem, plan, Order(1, 2048, 0.0, 0.0, live=live), 1, groups).step()
        told, of = spent.spent, f"cache, {row['policy']}: "
        pairs = {
            "sent again and computed again": (row["missed_share"], told["missed"] / told["sent"]),
            "computed over needed": (
                row["computed_over_needed"],
                (told["read_in"] + told["sampled"]) / sum(map(size, trajectories)),
            ),
            "preemptions": (row["preemptions"], told["preempted"]),
            "seconds": (row["seconds"], spent.waited),
        }
        found += [{"row": of + name, "measured": ours, "simulated": theirs} for name, (ours, theirs) in pairs.items()]
    return found


def traces() -> list[dict]:
    """The steps of benchmarks.rollout.tail on one H200. They were predicted for an H100, before they were measured."""
    found, label = [], {"partial 3": "partial, 3 ahead"}
    for name, speeds in json.loads((provenance.RESULTS / "tail.json").read_text())["speeds"].items():
        trace, kind = name.split("/")
        if kind == "fp8 cache" or not speeds:
            continue
        kind = label.get(kind, kind)
        for passes, suffix in (("with", ""), ("without", "bypass" if kind == "sync" else f"{kind}, bypass")):
            if f"step {passes}" in speeds:
                simulated = tail.played(tail.TRACES[trace], suffix or kind, "H200-141")
                row = {"row": f"{trace}, {suffix or kind}", "measured": speeds[f"step {passes}"]}
                found.append(row | {"simulated": simulated["step"], "fitted": False, "trace": True})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for name, seconds, phases, shape, layout, gpus, turns, tp in measured():
        took, parts = played(shape, layout, gpus, turns, tp)
        row = {"row": name, "measured": seconds, "simulated": took, "fitted": name in FITTED}
        rows.append(row | {"measured_phases": phases, "phases": parts})
    rows += traces()
    rows += [row | {"fitted": False} for row in caches()]
    table = Table(padding=(0, 0))
    for heading in ("row", "measured", "simulated", "error\n%", "generation", "log-probs", "update", ""):
        table.add_column(heading, justify="left" if heading in ("row", "") else "right", no_wrap=True)
    for row in rows:
        row["error"] = row["simulated"] / row["measured"] - 1 if row["measured"] else 0.0
        both = [
            f"{row['phases'][name]:.1f} ({row['measured_phases'][name]:.1f})" if row.get("measured_phases") else ""
            for name in ("generation", "log-probs", "update")
        ]
        kind = "fitted" if row["fitted"] else "predicted"
        figures = (
            f"{row[name]:,.3g}" if row[name] < 1000 else f"{row[name]:,.0f}" for name in ("measured", "simulated")
        )
        table.add_row(row["row"], *figures, f"{100 * row['error']:+.1f}", *both, kind)
    Console(width=140, highlight=False).print(table)
    for what, chosen in (
        ("steps", [row for row in rows if "phases" in row]),
        ("steps of the traces", [row for row in rows if "trace" in row]),
        ("figures of the cache", rows[len(rows) - 8 :]),
    ):
        free = [row for row in chosen if not row["fitted"]]
        within = [row for row in free if abs(row["error"]) <= GOAL]
        missed = ", ".join(f"{row['row']} {row['error']:+.0%}" for row in free if row not in within) or "none"
        print(f"{what}: {len(within)} of {len(free)} predictions within {GOAL:.0%}; missed: {missed}")
    provenance.write(arguments.out, provenance.made(("numpy",)), {"rows": rows})


if __name__ == "__main__":
    main()
