"""The prompts of a recorded step through the rollout engine again, without a trainer: same policy, same seeds.

Like an evaluation: the rollout's own episodes on a vLLM engine; no Ray, no Megatron.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from retool_mcore.data.formats import get_format
from retool_mcore.files import write_atomically
from retool_mcore.metrics.records import read_step, write_step
from retool_mcore.rollout.episode import LIMITS, Limits, run_episode
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.train.eval import build_engine, sampler

RESULT = "rollout.json"


async def roll_out(config, records: list[dict]) -> tuple[list[dict], float]:
    """(one new record for each of `records`, in order; seconds that all of them took, the engine's start left out)."""
    tokenizer = AutoTokenizer.from_pretrained(config.policy_path)
    fmt = get_format(config.rollout.format, tokenizer)
    limits = Limits(**{name: config.rollout[name] for name in LIMITS})
    engine = build_engine(config)
    sandbox = create_sandbox(config.sandbox)

    async def one(record: dict) -> dict:
        trajectory = await run_episode(
            record["prompt_ids"].tolist(),
            generate=sampler(engine, config, fmt, record["index"], record["sample"], config.replay.step),
            sandbox=sandbox,
            fmt=fmt,
            tokenizer=tokenizer,
            limits=limits,
            timeout_s=config.sandbox.timeout_s,
        )
        names = ("step", "uid", "sample", "index", "data_source", "ground_truth")
        return trajectory.to_record() | {name: record[name] for name in names}

    try:
        clock = time.perf_counter()
        found = await asyncio.gather(*map(one, records))
        return found, time.perf_counter() - clock
    finally:
        engine.shutdown()
        await sandbox.close()


def compare(recorded: list[dict], found: list[dict], seconds: float) -> dict:
    """What came out: counts, speed, and how much of it is token for token what was recorded.

    `policy_tokens_per_second` counts sampled tokens over the whole rollout; `tool_s`, `generate_s` are means over the
    trajectories; `same_prefix` is the mean share of a recorded response before the first other token.
    """
    prefixes = [
        _same_prefix(old["response_ids"], new["response_ids"]) for old, new in zip(recorded, found, strict=True)
    ]
    same = [
        len(old["response_ids"]) == len(new["response_ids"]) == prefix
        for old, new, prefix in zip(recorded, found, prefixes, strict=True)
    ]
    shares = [p / max(1, len(old["response_ids"])) for p, old in zip(prefixes, recorded, strict=True)]
    return {
        "trajectories": len(found),
        "same": same,
        "same_prefix": float(np.mean(shares)),
        "seconds": seconds,
        "policy_tokens": policy_tokens(found),
        "policy_tokens_per_second": policy_tokens(found) / seconds,
        "calls": sum(len(record["calls"]) for record in found),
        "tool_s": float(np.mean([record["tool_s"] for record in found])),
        "generate_s": float(np.mean([record["generate_s"] for record in found])),
    }


def policy_tokens(records: list[dict]) -> int:
    return sum(s["end"] - s["start"] for r in records for s in r["spans"] if s["kind"] == "policy")


def _same_prefix(old, new) -> int:
    length = min(len(old), len(new))
    different = np.flatnonzero(np.asarray(old[:length]) != np.asarray(new[:length]))
    return int(different[0]) if len(different) else length


def main(config_path: str) -> None:
    config = OmegaConf.load(config_path)
    folder = Path(config_path).parent
    recorded = read_step(config.replay.records)
    found, seconds = asyncio.run(roll_out(config, recorded))
    write_step(folder / "trajectories", config.replay.step, found)
    write_atomically(folder / RESULT, json.dumps(compare(recorded, found, seconds), indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
