"""Environments that answer every text of the policy: a game, a simulated user, a judge that asks again.

An episode is a conversation. What the policy writes is the environment's action, its observation the user's next turn;
each reward is recorded as the `value` of a call of the environment, as that of a tool is.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from retool_mcore.environments import gym
from retool_mcore.tools.base import Tool


class TextEnvironment(gym.GymEnvironment):
    """One environment with `reset` and `step` a trajectory, for `toolbox.use`; `step` gets each text of the policy.

    make, args: as `GymEnvironment` takes them. name: the data source of its rows, which name it. Of a text the
    environment sees what follows the last thought (`</think>`), special tokens left out. A turn that calls a tool is
    answered by the tool.
    """

    answers_texts = True

    def __init__(self, make: str, name: str, args: Mapping[str, Any] | None = None):
        super().__init__(make, name, "Answers the texts of the policy.", args)

    def write_rows(
        self, path: Path | str, *, seeds: Iterable[int], instructions: str = "", split: str = "train",
        beside: tuple[Tool, ...] = (),
    ) -> None:  # fmt: skip
        """See `gym.write_rows`."""
        gym.write_rows(self, path, seeds=seeds, instructions=instructions, split=split, beside=beside)
