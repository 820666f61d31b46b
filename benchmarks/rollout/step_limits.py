"""The parts of a whole step beside what the hardware would allow, from the measured steps of steps.py.

    python -m benchmarks.rollout.step_limits

A limit has no constant that was fitted: products and attention at the data sheet's peak, the weights read once for
every token of the longest trajectory, half of the weights over NVLink to the engine on the other GPU. Step 1 compiles
and is left out.
"""

import json

from benchmarks.provenance import RESULTS
from retool_mcore.planner.flops import forward_flops, model_flops
from retool_mcore.planner.machine import GPUS
from retool_mcore.planner.rollout import weight_bytes
from retool_mcore.planner.shape import named

PARTS = {"gen": "generation", "old_log_prob": "log-probabilities", "update_actor": "update", "update_weights": "push"}
RUNS = {"stock": "rl_step_stock", "ours": "rl_step_again", "with overlap": "rl_step_overlap"}
GPU, DEVICES, SEQUENCES, LONGEST = "H200", 2, 256, 2048


def later_steps(name: str) -> list[dict]:
    return [step for step in json.loads((RESULTS / f"{name}.json").read_text())["steps"] if step["step"] > 1]


def mean(steps: list[dict], key: str) -> float:
    return sum(step[key] for step in steps) / len(steps)


def limits(tokens: float) -> dict[str, float]:
    """Seconds of each part of a step of `tokens` in all."""
    shape, machine = named("qwen2.5-7b"), GPUS[GPU]
    lengths = [round(tokens / SEQUENCES)] * SEQUENCES
    peak = DEVICES * machine.bf16
    return {
        "gen": LONGEST * weight_bytes(shape, 1) / machine.hbm,
        "old_log_prob": forward_flops(shape, lengths) / peak,
        "update_actor": model_flops(shape, lengths) / peak,
        "update_weights": weight_bytes(shape, 1) / 2 / machine.nvlink,
    }


def main() -> None:
    measured = {name: later_steps(file) for name, file in RUNS.items()}
    least = limits(mean(measured["with overlap"], "perf/total_num_tokens"))
    print(f"| s a step | {' | '.join(measured)} | limit | {list(measured)[-1]} / limit |")
    print("|---|" + "---|" * (len(measured) + 2))
    for key, part in PARTS.items():
        found = [mean(steps, f"timing_s/{key}") for steps in measured.values()]
        cells = " | ".join(f"{seconds:.2f}" for seconds in found)
        print(f"| {part} | {cells} | {least[key]:.3g} | {found[-1] / least[key]:.1f} |")
    whole = [mean(steps, "timing_s/step") for steps in measured.values()]
    rest = [
        all_of_it - sum(mean(steps, f"timing_s/{key}") for key in PARTS)
        for all_of_it, steps in zip(whole, measured.values(), strict=True)
    ]
    print(f"| audit, advantages, the rest | {' | '.join(f'{seconds:.2f}' for seconds in rest)} | 0 | |")
    least_all = sum(least.values())
    cells = " | ".join(f"{seconds:.2f}" for seconds in whole)
    print(f"| **step** | {cells} | {least_all:.3g} | {whole[-1] / least_all:.1f} |")
    speeds = [mean(steps, "perf/throughput") for steps in measured.values()]
    told = ", ".join(f"{name} {speed:.0f}" for name, speed in zip(measured, speeds, strict=True))
    print(f"\ntokens/s/GPU: {told}: {speeds[-1] / speeds[0]:.2f} times stock's")


if __name__ == "__main__":
    main()
