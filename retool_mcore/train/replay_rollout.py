"""The prompts of a recorded step through the rollout engine again, without a trainer: same policy, same seeds.

Like an evaluation: the rollout's own episodes on a vLLM engine; no Ray, no Megatron.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.backends.vllm.engine import build_engine, sampler
from retool_mcore.data.policy_format import load_format
from retool_mcore.files import write_atomically
from retool_mcore.metrics.records import read_step, write_step
from retool_mcore.metrics.rollout_diff import RESULT, compare
from retool_mcore.rollout.episode import LIMITS, Limits, run_episode
from retool_mcore.sandbox.create import create_sandbox


async def roll_out(config, records: list[dict]) -> tuple[list[dict], float]:
    """(one new record for each of `records`, in order; seconds that all of them took, the engine's start left out)."""
    fmt = load_format(config, config.policy_path)
    tokenizer = fmt.tokenizer
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
        trajectories = await asyncio.gather(*map(one, records))
        return trajectories, time.perf_counter() - clock
    finally:
        engine.shutdown()
        await sandbox.close()


def main(config_path: str) -> None:
    config = OmegaConf.load(config_path)
    folder = Path(config_path).parent
    recorded = read_step(config.replay.records)
    trajectories, seconds = asyncio.run(roll_out(config, recorded))
    write_step(folder / "trajectories", config.replay.step, trajectories)
    write_atomically(folder / RESULT, json.dumps(compare(recorded, trajectories, seconds), indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
