"""Speed and memory of the policy update and of SFT: verl's Megatron engine, true widths, random weights, fixed batches.

A plan (benchmarks/train/plan.yaml) lists groups of runs that share a layout; every group is a torchrun process group of
its own (train_worker.py) with its own time limit, so that a run that fails loses only itself: the group starts again
behind it. Each run's row is written as soon as it is there. `--quick` runs the tiny shape on the CPU. The worker is
verl's TrainingWorker with the settings of `retool rl` and our audited loss; a step is zero_grad, all micro-batches,
gradient norm and optimizer. Model FLOPs and predictions are the planner's (retool_mcore/planner).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from benchmarks import provenance
from retool_mcore.backends.env import COMMON, CPU, ONE_NODE
from retool_mcore.planner import SHAPES, Shape
from retool_mcore.planner.flops import model_flops
from tests.support.calibration import batch_of, case

WORKER = "benchmarks.train.worker"
PLAN = Path(__file__).with_name("plan.yaml")
RESULT = provenance.RESULTS / "train_gpu.json"
QUICK = Path(__file__).with_name("quick.yaml")
PEAK_TFLOPS = 989.0  # NVIDIA's data sheet: H100 and H200 SXM, dense bfloat16
PACKAGES = ("torch", "verl", "megatron-core", "megatron-bridge", "mbridge", "transformer_engine", "transformers")
TINY = Shape(layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, head_dim=16, vocab=384, tied=False)


def merged(base: dict, change: dict) -> dict:
    """`base` with `change` laid over it, sections merged."""
    both = {key: merged(base[key], change[key]) for key in base.keys() & change.keys() if isinstance(base[key], dict)}
    return base | change | both


def expanded(plan: dict, profiles: Path = Path(".")) -> list[dict]:
    """The plan's groups, every run with its defaults, its settings in full and a list of lengths."""
    groups = []
    for group in plan["groups"]:
        runs = []
        for number, short in enumerate(group["runs"]):
            run = {"warm_up": 2, "steps": 3, "init": "random", "kind": "grpo"} | plan.get("defaults", {}) | short
            shape = TINY if run["model"] == "tiny" else SHAPES[run["model"]]
            run["length_spec"] = run["lengths"]
            run["lengths"] = list(batch_of(run["lengths"]).lengths)
            run["layers"] = run.get("layers", shape.layers)
            run["shape"] = asdict(shape)
            run["settings_name"] = run["settings"] + "".join(f" {name}" for name in short.get("changes", ()))
            settings = plan["settings"][run["settings"]]
            for change in short.get("changes", ()):
                settings = merged(settings, plan["changes"][change])
            run["settings"] = settings
            run["id"] = f"{group['name']}/{number}"
            if run.get("profile"):
                run["profile"] = str((profiles / f"train_profile_{run['profile']}.json").resolve())
            runs.append(run)
        groups.append(group | {"runs": runs})
    return groups


def torchrun(group: dict, folder: Path, devices: list[int], models: Path) -> tuple[subprocess.Popen, Path]:
    """Start the group's processes on `devices`; the lines that they write come into the returned file."""
    start = f"{group['name']}-{len(list(folder.glob(group['name'] + '-*.json')))}"
    spec, out = folder / f"{start}.json", folder / f"{start}.jsonl"
    spec.write_text(json.dumps({"layout": group.get("layout", {}), "runs": group["runs"], "models": str(models)}))
    out.touch()
    there = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # "" where all are
    own = [there[device] if there[0] else str(device) for device in devices]
    env = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ",".join(own)} | group.get("env", {})
    env["PYTHONPATH"] = os.pathsep.join([str(provenance.ROOT), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={len(devices)}"]
    command += [f"--master-port={29500 + devices[0]}", "-m", WORKER, str(spec), str(out)]
    log = (folder / f"{start}.log").open("w")
    return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True), out


def error_line(log: Path) -> str:
    """The last line of a log that names an error, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line and "error_file" not in line]
    return (errors or lines or ["no output"])[-1][-400:]


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def row(group: dict, run: dict, found: dict, gpu: str) -> dict:
    """What is published of a run."""
    layout = {"tp": 1, "pp": 1, "cp": 1} | group.get("layout", {})
    layout["dp"] = group["gpus"] // (layout["tp"] * layout["pp"] * layout["cp"] * layout.get("sp", 1))
    layout |= {"sequence_parallel": layout["tp"] > 1, "micro_batch_tokens": run["micro_batch_tokens"]}
    transformer = run["settings"].get("engine", {}).get("override_transformer_config", {})
    modules = transformer.get("recompute_modules") or ["core_attn"]
    kind = transformer.get("recompute_granularity") or "none"
    layout["recompute"] = "mlp" if kind == "selective" and modules == ["mlp"] else kind
    head = {
        "id": run["id"],
        "shape": run["shape"] if run["model"] == "tiny" else run["model"],
        "layers": run["layers"],
        "layout": layout,
        "lengths": run["length_spec"],
    }
    head |= {"gpu": gpu, "gpus": group["gpus"], "kind": run["kind"], "init": run["init"], "env": group.get("env", {})}
    return predicted(head | {"settings_name": run["settings_name"], "settings": run["settings"]} | found)


def predicted(row: dict) -> dict:
    """The row with its speeds by model FLOPs, where it was measured, and on a GPU the planner's predictions."""
    new = {}
    if row["gpu"] != "CPU" and "sp" not in row["layout"]:  # The planner plans Megatron's engine.
        planned = case(row).predict()
        new = {"predicted_memory_gb": planned.memory_bytes / 1e9, "predicted_step_s": planned.step_seconds}
    if "step_s" in row:
        shape = SHAPES[row["shape"]] if isinstance(row["shape"], str) else Shape(**row["shape"])
        lengths = batch_of(row["lengths"]).lengths
        per_gpu = model_flops(replace(shape, layers=row["layers"]), lengths) / row["step_s"] / row["gpus"] / 1e12
        new |= {"tflops_per_gpu": per_gpu, "mfu": per_gpu / PEAK_TFLOPS}
        new["tokens_per_s_per_gpu"] = sum(lengths) / row["step_s"] / row["gpus"]
    return row | new


class Runner:
    """Runs the groups on the devices there are, a group as soon as enough of them are free, in the plan's order."""

    def __init__(self, groups, devices: int, out: Path, budget_s: float, logs: Path, gpu: str):
        self.waiting, self.free, self.out, self.gpu = list(groups), list(range(devices)), out, gpu
        self.devices = devices
        self.deadline, self.logs, self.rows, self.live = time.monotonic() + budget_s, logs, [], []
        self.models = Path(tempfile.mkdtemp(prefix="train-models-"))

    def run(self) -> list[dict]:
        while self.waiting or self.live:
            if time.monotonic() > self.deadline:
                for job in self.live:
                    stop(job["process"])
                    self.finish(job, "the benchmark's time was over")
                break
            for job in list(self.live):
                self.collect(job)
                over = time.monotonic() - job["since"] > job["group"].get("limit_s", 120)
                if job["process"].poll() is not None or over:
                    self.live.remove(job)
                    stop(job["process"])
                    self.free = sorted(self.free + job["devices"])
                    self.finish(job, "no answer within the time limit" if over else None)
            while self.waiting and self.waiting[0]["gpus"] <= len(self.free):
                self.start(self.waiting.pop(0))
            time.sleep(0.2)
        return self.rows

    def start(self, group: dict) -> None:
        devices, self.free = self.free[: group["gpus"]], self.free[group["gpus"] :]
        process, lines = torchrun(group, self.logs, devices, self.models)
        job = {"group": group, "process": process, "lines": lines, "devices": devices, "since": time.monotonic()}
        self.live.append(job | {"read": 0, "left": list(group["runs"]), "started": None})

    def collect(self, job: dict) -> None:
        lines = job["lines"].read_text().splitlines()
        for line in map(json.loads, lines[job["read"] :]):
            job["since"] = time.monotonic()
            job["started"] = line["id"] if line["event"] == "start" else None
            if line["event"] == "end":
                run = job["left"].pop(0)
                self.keep(row(job["group"], run, {k: v for k, v in line.items() if k not in ("id", "event")}, self.gpu))
        job["read"] = len(lines)

    def finish(self, job: dict, reason: str | None) -> None:
        self.collect(job)
        if job["left"] and (job["started"] or not job["read"]):  # in a run, or not come as far as one
            error = {"error": reason or error_line(job["lines"].with_suffix(".log"))}
            self.keep(row(job["group"], job["left"].pop(0), error, self.gpu))
        if job["left"] and time.monotonic() < self.deadline:
            self.waiting.insert(0, job["group"] | {"runs": job["left"]})

    def keep(self, new: dict) -> None:
        self.rows.append(new)
        write(self.out, self.rows, self.gpu, self.devices)
        print(line_of(new), flush=True)


def line_of(row: dict) -> str:
    layout = row["layout"]
    sizes = {name: layout.get(name, 1) for name in ("tp", "pp", "cp", "sp", "dp")}
    where = "".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "one"
    where = f"fsdp {where}" if "sp" in layout else where
    shape = row["shape"] if isinstance(row["shape"], str) else "tiny"
    head = f"{shape:>12} x{row['layers']:<3} {where:8} {row['kind']:4} {row['settings_name']:34} "
    if "error" in row:
        return head + "failed: " + row["error"][:160]
    text = f"{row['step_s']:7.3f} s {row['tflops_per_gpu']:6.1f} TFLOP/s/GPU {row['peak_memory_gb']:6.1f} GB "
    if "predicted_step_s" in row:
        text += f"(predicted {row['predicted_step_s']:.3f} s {row['predicted_memory_gb']:.1f} GB) "
    return head + text + f"loss {row['loss'][0]:.6f} norm {row['grad_norm'][0]:.5f}"


def write(out: Path, rows: list[dict], gpu: str, devices: int) -> None:
    # The same weights in every layout and a single timed step: what these are for is the loss and the gradient norm.
    checks = [row for row in rows if row["init"] == "checkpoint" and "error" not in row]
    head = provenance.made(PACKAGES, device=None if gpu == "CPU" else (gpu, devices))
    provenance.write(out, head, {"rows": [row for row in rows if row not in checks], "checks": checks})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help=f"default: {PLAN.name}; with --quick {QUICK.name}")
    parser.add_argument("--quick", action="store_true", help="the tiny shape on the CPU, two processes over gloo")
    parser.add_argument("--only", nargs="+", help="names of groups to run")
    parser.add_argument("--devices", type=int, help="default: the CUDA devices there are; with --quick 2 processes")
    parser.add_argument("--budget-s", type=float, default=3600, help="groups that have not ended by then are stopped")
    parser.add_argument("--out", type=Path, help=f"default: {RESULT.name}; with --quick among the processes' output")
    parser.add_argument("--logs", type=Path, help="folder of the processes' output; default: a temporary one")
    parser.add_argument("--predict-again", type=Path, metavar="FILE", help="only renew FILE's predictions and speeds")
    arguments = parser.parse_args()
    if arguments.predict_again:
        found = json.loads(arguments.predict_again.read_text())
        found |= {part: [predicted(row) for row in found[part]] for part in ("rows", "checks")}
        arguments.predict_again.write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(map(line_of, found["rows"])))
        return
    plan = yaml.safe_load((arguments.plan or (QUICK if arguments.quick else PLAN)).read_text())
    devices, gpu = arguments.devices or 2, "CPU"
    if arguments.quick:
        os.environ.update(COMMON | ONE_NODE | CPU)  # for its processes
    else:
        import torch

        devices, gpu = arguments.devices or torch.cuda.device_count(), torch.cuda.get_device_name(0)
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="train-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    out = arguments.out or (logs / "rows.json" if arguments.quick else RESULT)
    groups = [group for group in expanded(plan, out.parent) if not arguments.only or group["name"] in arguments.only]
    Runner(groups, devices, out, arguments.budget_s, logs, gpu.removeprefix("NVIDIA ")).run()
    print(f"rows: {out}, output of the processes: {logs}")


if __name__ == "__main__":
    main()
