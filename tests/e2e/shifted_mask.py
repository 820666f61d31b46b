"""`retool rl`'s process with one thing broken: the agent loop's mask stands one token too early.

`python shifted_mask.py CONFIG`, with this folder in PYTHONPATH (conftest.py): Ray's workers import the loop from here.
"""

import sys

from retool_mcore.backends.verl.agent_loop import RetoolAgentLoop


class ShiftedLoop(RetoolAgentLoop):
    """The mask is rolled by one: the last token of every observation counts as sampled."""

    async def run(self, *args, **kwargs):
        output = await super().run(*args, **kwargs)
        output.response_mask = output.response_mask[1:] + output.response_mask[:1]
        return output


def main(config_path: str) -> None:
    from retool_mcore.backends.verl import settings
    from retool_mcore.train import rl

    write = settings.write_agent_loop

    def write_shifted(config, path):
        write(config, path)
        path.write_text(
            path.read_text().replace(
                "retool_mcore.backends.verl.agent_loop.RetoolAgentLoop", "shifted_mask.ShiftedLoop"
            )
        )

    settings.write_agent_loop = write_shifted
    rl.main(config_path)


if __name__ == "__main__":
    main(sys.argv[1])
