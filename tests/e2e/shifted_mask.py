"""`retool rl`'s process with one thing broken: the mask of every trajectory stands one token too early.

`python shifted_mask.py CONFIG`, with this folder in PYTHONPATH (conftest.py): Ray's workers import the episodes from
here.
"""

import sys

import numpy as np

from retool_mcore.backends.verl.episodes import Episodes


class ShiftedEpisodes(Episodes):
    """The mask is rolled by one: the last token of every observation counts as sampled."""

    async def run(self, *args, **kwargs):
        sample, facts = await super().run(*args, **kwargs)
        sample.response_mask = np.roll(sample.response_mask, -1)
        return sample, facts


def main(config_path: str) -> None:
    import shifted_mask  # under the name by which the workers find it

    from retool_mcore.backends.verl import engines
    from retool_mcore.train import rl

    engines.Episodes = shifted_mask.ShiftedEpisodes
    rl.main(config_path)


if __name__ == "__main__":
    main(sys.argv[1])
