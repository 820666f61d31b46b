"""`retool rl`'s process with a note of every turn's prefix-cache hits: steps.py starts it, `python -m ... CONFIG`."""

import json
import os
import sys
from pathlib import Path

from retool_mcore.backends.verl import settings
from retool_mcore.backends.verl.agent_loop import RetoolAgentLoop
from retool_mcore.train import rl

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
    settings.AGENT_LOOPS[None] = "benchmarks.rollout.noting.NotingLoop"
    rl.main(config_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
