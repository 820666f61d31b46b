"""`retool rl`'s process with a note of every turn's prefix-cache hits: steps.py starts it, `python -m ... CONFIG`."""

import json
import os
import sys
from pathlib import Path

from retool_mcore.backends.verl import engines
from retool_mcore.backends.verl.episodes import Episodes
from retool_mcore.train import rl

TRACE = "RETOOL_TURN_NOTES"  # the file into which every process writes its turns


def note(line: dict) -> None:
    with Path(os.environ[TRACE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class NotingClient:
    """verl's client of the engine; notes for every turn (tokens sent, generated, found in the prefix cache)."""

    def __init__(self, client) -> None:
        self.client, self.turns = client, []

    async def generate(self, request_id, **request):
        output = await self.client.generate(request_id, **request)
        cached = output.extra_fields.get("num_cached_tokens")
        self.turns.append([len(request["prompt_ids"]), len(output.token_ids), cached])
        return output


class NotingEpisodes(Episodes):
    """The product's episodes, with a note of every turn's prefix-cache hits."""

    async def run(self, client, uid, number, row, step, sampling):
        noting = NotingClient(client)
        try:
            return await super().run(noting, uid, number, row, step, sampling)
        finally:
            note({"step": step, "turns": noting.turns})


def main(config_path: str) -> None:
    from benchmarks.rollout import noting  # under the name by which the workers find it

    engines.Episodes = noting.NotingEpisodes
    rl.main(config_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
