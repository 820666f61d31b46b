"""`retool rl`'s process with a note of every turn's prefix-cache hits: steps.py starts it, `python -m ... CONFIG`."""

import json
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf
from verl.utils.config import validate_config

from retool_mcore.backends.check import assert_adapters
from retool_mcore.backends.verl.agent_loop import RetoolAgentLoop
from retool_mcore.backends.verl.run import run_trainer
from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.backends.verl.task_runner import Runner

TRACE = "RETOOL_TURN_NOTES"  # the file into which every process writes its turns


def note(line: dict) -> None:
    with Path(os.environ[TRACE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class NotingManager:
    """verl's client of the engine; notes for every turn (tokens sent, generated, found in the prefix cache)."""

    def __init__(self, manager) -> None:
        self.manager, self.turns = manager, []

    async def generate(self, **request):
        output = await self.manager.generate(**request)
        cached = output.extra_fields.get("num_cached_tokens")
        self.turns.append([len(request["prompt_ids"]), len(output.token_ids), cached])
        return output


class NotingLoop(RetoolAgentLoop):
    """The product's agent loop, with a note of every turn's prefix-cache hits."""

    async def run(self, sampling_params, priority=0, **kwargs):
        self.server_manager = NotingManager(self.server_manager)
        try:
            return await super().run(sampling_params, priority=priority, **kwargs)
        finally:
            note({"step": int(kwargs["global_steps"]), "turns": self.server_manager.turns})


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "rl"
    stage_dir.mkdir(parents=True, exist_ok=True)
    verl = verl_config(config, stage_dir)
    path = Path(verl.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    loops = OmegaConf.load(path)
    loops[0]["_target_"] = "benchmarks.rollout.noting.NotingLoop"
    path.write_text(OmegaConf.to_yaml(loops))
    validate_config(verl, use_reference_policy=False, use_critic=False)
    run_trainer(verl, Runner)


if __name__ == "__main__":
    main(*sys.argv[1:])
