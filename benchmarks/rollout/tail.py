"""The tail of generation: `pipeline=partial` and `correction=bypass` beside sync and stock verl, on two traces.

    for trace in lengths slow-tools; do
        python -m benchmarks.rollout.scripted_policy /tmp/$trace 0.5b --trace $trace; done
    python -m benchmarks.rollout.tail --models /tmp --gpus 4      # side by side, one GPU each
    python -m benchmarks.rollout.tail --models /tmp --cpu         # tiny models, one after the other, no GPU
    python -m benchmarks.rollout.tail --tell /tmp/tail            # of a run that is under way, or was cut off

Runs with `correction=bypass` leave the pass for old log-probabilities out of every second step, so both kinds of step
come from one run: a speed "with the pass" counts the rest of all steps and the measured seconds a token of those that
had it, a speed without likewise. Left out are the first step, which compiles, and as many as a pipeline is ahead.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks import provenance
from benchmarks.rollout.steps import PACKAGES, steps_of, told

BYPASS = "correction=bypass correction.log_probs_every=2"
AHEAD = "pipeline=partial pipeline.staleness={}"
# name: (trace, batches ahead, further words, steps, seconds at most). `stock` is verl's own trainer.
RUNS = {
    "lengths/sync": ("lengths", 0, BYPASS, 6, 900),
    "lengths/partial": ("lengths", 1, f"{AHEAD.format(1)} {BYPASS}", 9, 900),
    "lengths/partial 3": ("lengths", 3, f"{AHEAD.format(3)} {BYPASS}", 13, 900),
    "lengths/stock": ("lengths", 0, "stock", 4, 800),
    "slow-tools/sync": ("slow-tools", 0, BYPASS, 7, 600),
    "slow-tools/partial": ("slow-tools", 1, f"{AHEAD.format(1)} {BYPASS}", 9, 480),
    "slow-tools/partial 3": ("slow-tools", 3, f"{AHEAD.format(3)} {BYPASS}", 13, 480),
    "slow-tools/stock": ("slow-tools", 0, "stock", 4, 520),
    "slow-tools/fp8 cache": ("slow-tools", 0, "parallel.rollout.kv_cache_dtype=fp8", 3, 300),
    "slow-tools/one_step_off": ("slow-tools", 1, f"pipeline=one_step_off {BYPASS}", 9, 480),
    "slow-tools/async": ("slow-tools", 2, f"pipeline=async {BYPASS}", 11, 480),
}
# (GPUs, runs one after the other); verl's socket of a push is named by Ray's job, so no two stock runs at once.
LANES = [
    ("0", ["lengths/sync", "slow-tools/sync"]),
    ("1", ["lengths/partial", "slow-tools/partial", "slow-tools/fp8 cache"]),
    ("2", ["lengths/partial 3", "slow-tools/partial 3"]),
    ("3", ["slow-tools/stock", "lengths/stock"]),
    ("2,3", ["slow-tools/one_step_off", "slow-tools/async"]),  # once both are free
]
SMALL = ["--batch", "4", "--n", "2", "--steps", "2", "--cpu", "--micro", "16384"]


def command(given, name: str, folder: Path) -> list[str]:
    trace, _, words, steps, limit = RUNS[name]
    found = [sys.executable, "-m", "benchmarks.rollout.steps", "--model", str(given.models / trace), "--trace", trace]
    found += ["--gpus", "1", "--family", "qwen2.5-1.5b", "--micro", "16384", "--steps", str(steps)]
    found += ["--work", str(folder), "--result", str(folder / "result.json"), "--limit", str(limit)]
    found += SMALL if given.cpu else []
    if words == "stock":
        return [*found, "--stock"]
    return [*found, *(part for word in words.split() for part in ("--override", word))]


def drive(given, gpus: str, names: list[str]) -> None:
    """The runs of a lane, one after the other, on cores of their own."""
    temporary = Path(f"/tmp/tail-ray-{os.getpid()}-{gpus[0]}")
    temporary.mkdir(mode=0o700, exist_ok=True)
    env = os.environ | {"RAY_TMPDIR": str(temporary), "RETOOL_TEMPLATE": "on"}
    if not given.cpu:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // given.gpus)
        os.sched_setaffinity(0, [cores[int(gpu) * share + place] for gpu in gpus.split(",") for place in range(share)])
        env["CUDA_VISIBLE_DEVICES"] = gpus
    for name in names:
        folder = given.work / name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        clock, limit = time.time(), RUNS[name][-1]
        with (folder / "out.txt").open("w") as log:
            process = subprocess.Popen(
                command(given, name, folder),
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit)
                how = f"exit {process.returncode}"
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # `steps` ends what it started
                how = f"stopped after {limit} s"
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
        (folder / "ended.json").write_text(json.dumps({"how": how, "seconds": time.time() - clock}))
        print(f"{name}: {how}, {time.time() - clock:.0f} s", flush=True)


def read(work: Path) -> dict[str, dict]:
    """What the runs have written so far, by name."""
    found = {}
    for name in RUNS:
        folder = work / name.replace(" ", "_")
        if not folder.is_dir():
            continue
        stages = sorted(folder.glob("ours_*/step/rl"))
        stocks = sorted(folder.glob("stock_*"))
        run = told(stages[-1]) if stages else {"steps": steps_of(stocks[-1], "metrics") if stocks else []}
        ended = folder / "ended.json"
        run["ended"] = json.loads(ended.read_text()) if ended.is_file() else "not ended"
        found[name] = run
    return found


def speeds(name: str, run: dict) -> dict[str, float]:
    """Of the steps that count: number, mean parts, tokens/s with and without the pass for old log-probabilities."""
    steps = [step for step in run["steps"] if step["step"] > 1 + RUNS[name][1]]
    if not steps:
        return {}
    tokens = sum(step["perf/total_num_tokens"] for step in steps)
    gpus = next(len(gpus.split(",")) for gpus, names in LANES if name in names)
    every = 2 if BYPASS in RUNS[name][2] else 1
    rest = sum(step["timing_s/step"] - step.get("timing_s/old_log_prob", 0.0) for step in steps)
    found = {"steps": len(steps), "tokens": tokens / len(steps)}
    for kind, chosen in {
        "with": [step for step in steps if (step["step"] - 1) % every == 0],
        "without": [step for step in steps if (step["step"] - 1) % every],
    }.items():
        if chosen:
            of = sum(step["perf/total_num_tokens"] for step in chosen)
            spent = sum(step.get("timing_s/old_log_prob", 0.0) for step in chosen) / of * tokens
            found |= {f"tokens/s {kind}": tokens / (rest + spent) / gpus, f"old_log_prob {kind}": spent / len(steps)}
            found[f"step {kind}"] = (rest + spent) / len(steps)
            found[f"tokens/s of such steps {kind}"] = of / sum(step["timing_s/step"] for step in chosen) / gpus
    for part in ("gen", "update_actor", "update_weights"):
        found[part] = sum(step.get(f"timing_s/{part}", 0.0) for step in steps) / len(steps)
    return found


def tell(runs: dict[str, dict]) -> dict[str, dict[str, float]]:
    found = {name: speeds(name, run) for name, run in runs.items()}
    for trace in ("lengths", "slow-tools"):
        base = {kind: found.get(f"{trace}/{kind}", {}).get("tokens/s with") for kind in ("sync", "stock")}
        print(
            f"\n| {trace} | steps | step, s | generation | passes | update | push | tokens/s/GPU | / sync | / stock |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for name, one in found.items():
            for kind in ("with", "without"):
                if name.startswith(f"{trace}/") and f"tokens/s {kind}" in one:
                    speed = one[f"tokens/s {kind}"]
                    cells = [f"{one[key]:.1f}" for key in (f"step {kind}", "gen", f"old_log_prob {kind}")]
                    cells += [f"{one['update_actor']:.1f}", f"{one['update_weights']:.2f}", f"{speed:,.0f}"]
                    cells += [f"{speed / of:.2f}" if of else "" for of in base.values()]
                    label = name.split("/")[1] + (", bypass" if kind == "without" else "")
                    print(f"| {label} | {one['steps']} | {' | '.join(cells)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("/tmp"), help="with a folder for each trace")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--lane", type=int, nargs="*", default=[], help="of LANES; default: the first four")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], choices=RUNS)
    parser.add_argument("--work", type=Path, default=Path("/tmp/tail"))
    parser.add_argument("--tell", type=Path, metavar="WORK", help="only read what the runs there have written")
    parser.add_argument("--result", default="tail", help="name under benchmarks/results")
    given = parser.parse_args()
    head = provenance.made(PACKAGES, device=None if given.cpu else provenance.gpus())
    if given.tell is None:
        chosen = [LANES[number] for number in given.lane] if given.lane else LANES[:4]
        lanes = [(gpus, [name for name in names if not given.only or name in given.only]) for gpus, names in chosen]
        threads = [threading.Thread(target=drive, args=(given, *lane)) for lane in lanes]
        for thread in threads:
            thread.start()
            if given.cpu or given.gpus == 1:
                thread.join()
        for thread in threads:
            thread.join()
    runs = read(given.tell or given.work)
    found = tell(runs)
    provenance.write(given.result, head, {"speeds": found, "runs": runs})


if __name__ == "__main__":
    main()
