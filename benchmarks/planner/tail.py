"""Simulated steps of the traces (benchmarks/rollout/traces.py), by how generation and training take turns: on one GPU,
and for `one_step_off` and `async` on two, of which one trains.

python -m benchmarks.planner.tail            # predicted before benchmarks.rollout.tail ran
python -m benchmarks.planner.tail --gpu H200-141
"""

import argparse
import random

from benchmarks.rollout.traces import TRACES, Trace
from retool_mcore.planner import MACHINES, Batch, Layout, Shape, rollout, scale
from retool_mcore.planner.memory import memory
from retool_mcore.planner.search import Problem, planned
from retool_mcore.planner.serving import Trajectory
from retool_mcore.planner.simulate import Order, Simulation

# Layouts of the measured runs: stock verl's, ours, and ours with full micro-batches, overlap and bfloat16 logits.
STOCK = {"tp": 2, "micro_batch_tokens": 12288}
OURS = STOCK | {"fused_swiglu": True, "fused_rope": True, "fused_log_probs": "in_place", "fused_wgrad": True}
FULL = OURS | {"micro_batch_tokens": 16384, "packed": True, "overlap": True, "half_logits": True}
SHAPE = Shape(24, 896, 4864, 14, 2, 64, 151936, False)  # Qwen2.5-0.5B with an output matrix of its own
GROUP, SEQUENCES, SLOTS, WARM, PLAYED = 8, 256, 256, 3, 8
# Batches at work beyond the one that is trained, and whether the pass for old log-probabilities is left out.
KINDS = {
    "sync": (0, False),
    "bypass": (0, True),
    "partial": (1, False),
    "partial, bypass": (1, True),
    "partial, 3 ahead": (3, False),
    "partial, 3 ahead, bypass": (3, True),
    "one_step_off": (1, False),
    "one_step_off, bypass": (1, True),
    "async": (2, False),
    "async, bypass": (2, True),
    "stock": (0, False),
}
APART = ("one_step_off", "async")  # they train on a GPU and generate on another


def played(trace: Trace, kind: str, gpu: str = "H100-80", steps: int = PLAYED) -> dict[str, float]:
    """Seconds of a step and its parts, and tokens/s of a GPU, mean of `steps` after those that fill the queue."""
    ahead, bypass = KINDS[kind]
    ours = kind != "stock"
    parts = Layout(**{**(FULL if ours else STOCK), "tp": 1, "overlap": False, "micro_batch_tokens": 16384})
    draw = random.Random(1)
    lengths = [round(sum(map(sum, trace.draw(draw)[0]))) for _ in range(SEQUENCES)]
    batch, machine = Batch(tuple(lengths)), MACHINES[gpu]
    problem = Problem(SHAPE, 1, machine, batch)
    engine = rollout.engine(SHAPE, machine, 1, 0.4, 512)
    plan = planned(problem, parts, memory(SHAPE, parts, batch), engine)
    log_probs = 0.0 if bypass else scale.LOG_PROBS_FACTOR * plan.seconds["log-probs"]
    train = log_probs + plan.seconds["update"] + scale.REST_S
    apart = kind.startswith(APART)
    order = Order(GROUP, SLOTS, train, 0.5, ahead=ahead, colocated=not apart)
    draw = random.Random(2)
    groups = ([Trajectory(*trace.draw(draw)) for _ in range(GROUP)] for _ in iter(int, 1))
    simulation = Simulation(problem, plan, order, 1, groups)
    found = [simulation.step() for _ in range(WARM + steps)][WARM if ahead else 0 :]
    seconds = sum(step.seconds for step in found)
    return {
        "step": seconds / len(found),
        "generation": sum(step.waited for step in found) / len(found),
        "log-probs": log_probs,
        "update": plan.seconds["update"],
        "tokens/s": sum(step.tokens for step in found) / seconds / (1 + apart),
        "staleness": sum(sum(step.staleness) / len(step.staleness) for step in found) / len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H100-80", choices=MACHINES)
    given = parser.parse_args()
    for name, trace in TRACES.items():
        print(f"\n| {name} | step, s | generation | log-probabilities | update | tokens/s/GPU | / sync | / stock |")
        print("|---|---|---|---|---|---|---|---|")
        told = {kind: played(trace, kind, given.gpu) for kind in KINDS}
        for kind, found in told.items():
            shown = " | ".join(f"{found[part]:.1f}" for part in ("step", "generation", "log-probs", "update"))
            ratios = " | ".join(f"{found['tokens/s'] / told[base]['tokens/s']:.2f}" for base in ("sync", "stock"))
            print(f"| {kind} | {shown} | {found['tokens/s']:,.0f} | {ratios} |")


if __name__ == "__main__":
    main()
