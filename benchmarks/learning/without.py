"""`retool rl` without one of its parts, to see what the part is worth. Nothing of it is for use.

    python -m benchmarks.learning.without mask rl name=x ...      as `retool rl name=x ...`
    python -m benchmarks.learning.without order rl name=x ...

mask: the trainer is told that the policy wrote what the interpreter said, so that it is trained on it. Those tokens
have no probabilities of the rollout engine's, so that this runs with `correction=disabled`. order: mini-batches are cut
from the trajectories by length, the shortest first; verl's own order, that of their ends, is close to it. `Silent`, a
tool for `toolbox.use`, is the interpreter that does not say why a program failed.
"""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retool_mcore.backends.verl.episodes import Episodes
from retool_mcore.rollout.wire import from_wire, to_wire
from retool_mcore.tools.code import CodeInterpreter

PARTS = ("mask", "order")


@dataclass(eq=False)
class Silent(CodeInterpreter):
    """A program that failed is answered with nothing, as one that prints nothing."""

    async def call(self, arguments, episode):
        reply = await super().call(arguments, episode)
        return reply if reply.status == "success" else replace(reply, text="")


class UnmaskedEpisodes(Episodes):
    """Episodes all of whose tokens pass for the policy's."""

    async def run(self, *args, **kwargs):
        sample, facts = await super().run(*args, **kwargs)
        spans = [{"kind": "policy", "start": 0, "end": len(sample.response_ids)}]  # of which the audit takes the mask
        sample.notes["spans"], sample.response_mask = spans, np.ones_like(sample.response_mask)
        return sample, facts | {"trajectory": to_wire(from_wire(facts["trajectory"]) | {"spans": spans})}


def by_length(lengths: list[int], seed: int, step: int) -> list[int]:
    """As `drawn` of train/batch.py, which it replaces."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)


def stage(part: str, config_path: str) -> None:
    """The process of the stage, as of `python -m retool_mcore.train.rl`."""
    from benchmarks.learning import without  # under the name by which the workers find it
    from retool_mcore.backends.verl import engines
    from retool_mcore.train import batch, rl

    if part == "mask":
        engines.Episodes = without.UnmaskedEpisodes
    else:
        batch.drawn = by_length
    rl.main(config_path)


def main() -> int:
    part, word = sys.argv[1:3]
    if part not in PARTS:
        raise SystemExit(f"{part!r} is no part: expected one of {', '.join(PARTS)}.")
    if Path(word).is_file():
        stage(part, word)
        return 0
    from retool_mcore.cli.main import main as retool
    from retool_mcore.runner import launch

    def command(stage: str, config, path: Path, env=os.environ) -> list[str]:
        return [sys.executable, "-m", __spec__.name, part, str(path)]

    launch.stage_command = command
    del sys.argv[1]
    return retool()


if __name__ == "__main__":
    sys.exit(main())
