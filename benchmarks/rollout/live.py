"""What a step's trajectories cost a KV cache that holds a fraction of them: first come first served, by age, bounded.

    python -m benchmarks.rollout.live   # a GPU; 2,048 trajectories, a sixteenth of the 32B's lengths and cache

A replica of vLLM TP4 at 0.6 of 80 GB holds 454,000 tokens for 2,048 trajectories of 4,800 tokens on average. Here
tokens and cache are `--scale` times smaller, which leaves every ratio as it is. A trajectory is a prompt and turns of
the policy with a tool's wait and its observation in between; each turn sends all of it again. vLLM is real, with dummy
weights and turns of a set length; the same trajectories go through each policy:

    fcfs      a turn queues behind every turn that came before it: verl's default
    priority  a turn goes before those of trajectories that began later
    bounded   first come first served, but only as many trajectories at once as the cache holds when they are
              whole: what `retool rl` does (rollout/live.py)
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from pathlib import Path

from benchmarks import provenance

POLICIES = ("fcfs", "priority", "bounded")


def made(count: int, scale: int, seed: int) -> list[list[tuple[int, int]]]:
    """Trajectories as turns (tokens of the policy, tokens that come before them: the prompt or an observation)."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        total = min(16384, int(draw.lognormvariate(8.3, 0.6)))
        turns = 1 + min(8, int(draw.expovariate(1 / 3)))
        found.append(
            [(max(2, total // turns // scale), max(2, (300 if turn == 0 else 200) // scale)) for turn in range(turns)]
        )
    return found


def size(trajectory) -> int:
    return sum(policy + given for policy, given in trajectory)


async def episode(engine, number: int, trajectory, priority: bool, tool_s: float, vocabulary: int, spent: dict):
    from vllm import SamplingParams

    draw = random.Random(number)
    ids: list[int] = []
    for turn, (policy, given) in enumerate(trajectory):
        known = len(ids)
        ids += [draw.randrange(10, vocabulary) for _ in range(given)]
        parameters = SamplingParams(max_tokens=policy, min_tokens=policy, ignore_eos=True, seed=number * 100 + turn)
        chosen = {"priority": number + 1} if priority else {}
        async for output in engine.generate({"prompt_token_ids": ids}, parameters, f"{number}-{turn}", **chosen):
            last = output
        spent["sent_again"] += known
        spent["sent_again_missed"] += max(0, known - (last.num_cached_tokens or 0))
        ids += last.outputs[0].token_ids
        if turn + 1 < len(trajectory):
            await asyncio.sleep(draw.expovariate(1 / tool_s))


def counters() -> dict[str, float]:
    from prometheus_client import REGISTRY

    wanted = {"vllm:num_preemptions_total": "preemptions", "vllm:iteration_tokens_total_sum": "computed"}
    found = dict.fromkeys(wanted.values(), 0.0)
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name in wanted:
                found[wanted[sample.name]] += sample.value
    return found


async def run(policy: str, trajectories, given, model: str, vocabulary: int) -> dict:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    cache = given.cache // given.scale
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=18432 // given.scale,
            max_num_seqs=256,
            max_num_batched_tokens=max(2048, 18432 // given.scale),
            num_gpu_blocks_override=cache // 16,
            gpu_memory_utilization=given.memory,
            enable_prefix_caching=True,
            scheduling_policy="priority" if policy == "priority" else "fcfs",
        )
    )
    mean = sum(map(size, trajectories)) / len(trajectories)
    gate = asyncio.Semaphore(max(1, int(cache / mean)) if policy == "bounded" else len(trajectories))
    spent = {"sent_again": 0, "sent_again_missed": 0}

    async def one(number: int, trajectory) -> None:
        async with gate:
            await episode(engine, number, trajectory, policy == "priority", given.tool_s, vocabulary, spent)

    start = time.perf_counter()
    await asyncio.gather(*(one(number, trajectory) for number, trajectory in enumerate(trajectories)))
    seconds = time.perf_counter() - start
    await asyncio.sleep(1)
    needed = sum(map(size, trajectories))
    found = counters()
    engine.shutdown()
    return {
        "policy": policy,
        "seconds": round(seconds, 1),
        "tokens": needed,
        **spent,
        "missed_share": round(spent["sent_again_missed"] / spent["sent_again"], 4),
        **found,
        "computed_over_needed": round(found["computed"] / needed, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=2048)
    parser.add_argument("--cache", type=int, default=454_000, help="tokens, before --scale")
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--tool-s", type=float, default=0.1, help="seconds of a tool's answer, on average")
    parser.add_argument("--shape", default="1.5b", help="of scripted_policy.py")
    parser.add_argument("--memory", type=float, default=0.3, help="share of the GPU's memory")
    parser.add_argument("--policy", choices=POLICIES, help="only this one, in this process")
    parser.add_argument("--result", type=Path, default=provenance.RESULTS / "live.json")
    given = parser.parse_args()
    if given.policy is None:  # a process each: vLLM's counters are the process's
        import subprocess
        import sys

        rows, head = [], provenance.made(("torch", "vllm", "transformers"), device=provenance.gpus())
        for policy in POLICIES:
            command = [sys.executable, "-m", "benchmarks.rollout.live", *sys.argv[1:], "--policy", policy]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(rows[-1]), flush=True)
        provenance.write(given.result, head, {"rows": rows})
        before, after = rows[0], rows[-1]
        print(
            f"tokens computed over tokens needed: {before['computed_over_needed']} -> {after['computed_over_needed']}; "
            f"of the tokens sent again missed: {before['missed_share']:.1%} -> {after['missed_share']:.1%}; "
            f"seconds: {before['seconds']} -> {after['seconds']}"
        )
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from benchmarks.rollout.scripted_policy import SHAPES, make_config, make_tokenizer

    folder = tempfile.mkdtemp()
    tokenizer, _ = make_tokenizer(SHAPES[given.shape][-1])
    tokenizer.save_pretrained(folder)
    make_config(given.shape, tokenizer).save_pretrained(folder)
    trajectories = made(given.trajectories, given.scale, seed=1)
    result = asyncio.run(run(given.policy, trajectories, given, folder, len(tokenizer)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
