"""OTC's memory: the fewest calls with which a prompt was ever answered right, over the epochs of a run."""

import json
from pathlib import Path

from retool_mcore.files import read_json_lines, write_atomically


class FewestCalls:
    """A running minimum by prompt, on disk as one line a change: {"step", "prompt", "calls"}.

    `path` is read at the start. What steps from `first_step` on wrote is forgotten: they are run again after a resume,
    and must see what they saw before.
    """

    def __init__(self, path: Path, first_step: int):
        self.path = path
        # A line that a kill cut short is of a step that was not finished.
        kept = [entry for entry in read_json_lines(path) if entry["step"] < first_step]
        if path.exists():
            write_atomically(path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._fewest: dict[str, int] = {entry["prompt"]: entry["calls"] for entry in kept}

    def get(self, prompt: str) -> int | None:
        """The minimum so far; None while the prompt was never answered right."""
        return self._fewest.get(prompt)

    def update(self, step: int, minima: dict[str, int | None]) -> None:
        """Take over the minima of a step, by prompt; None and what is no improvement change nothing."""
        better = {
            prompt: calls
            for prompt, calls in minima.items()
            if calls is not None and calls < self._fewest.get(prompt, calls + 1)
        }
        self._fewest |= better
        lines = [json.dumps({"step": step, "prompt": prompt, "calls": calls}) for prompt, calls in better.items()]
        if lines:
            with self.path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
