"""A run's trajectories for the viewer: the index of all of them, and one at a time with its text."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from tokenizers import Tokenizer

from retool_mcore.errors import UserError
from retool_mcore.metrics.records import index, read_step, step_files
from retool_mcore.view.detail import detail

TOKENIZER = "tokenizer.json"


class Source:
    """The trajectories that RL wrote in the folder `run`. Raises UserError when it has none, or no tokenizer."""

    def __init__(self, run: Path):
        self.run = run.resolve()
        self.folder = self.run / "rl" / "trajectories"
        if not step_files(self.folder):
            raise UserError(f"{self.run} holds no trajectories: give the folder of a run whose RL has ended a step.")
        self._tokenizer = Tokenizer.from_file(str(find_tokenizer(self.run)))

    def index(self, places: Sequence[tuple[int, int]] | None = None) -> dict:
        """Columns by name, one value a trajectory, and `run`; only those at `places`, [(step, row), ...], if given.

        `seconds` is the time that a trajectory waited for engine and interpreter.
        """
        columns = index(self.run).to_pydict()
        waits = zip(columns.pop("generate_s"), columns.pop("tool_s"), strict=True)
        columns["seconds"] = [round((generate or 0.0) + (tool or 0.0), 3) for generate, tool in waits]
        if places is not None:
            order = {place: n for n, place in enumerate(zip(columns["step"], columns["row"], strict=True))}
            kept = [order[place] for place in places if place in order]
            columns = {name: [values[n] for n in kept] for name, values in columns.items()}
        return {"run": self.run.name} | columns

    def detail(self, step: int, row: int) -> dict:
        """See view/detail.py. Raises UserError when the run has no such trajectory."""
        files = step_files(self.folder)
        if step not in files:
            raise UserError(f"{self.run} has no trajectories of step {step}: it has {', '.join(map(str, files))}.")
        (record,) = read_step(files[step], rows=[row])
        return detail(record, self._decode)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def find_tokenizer(run: Path) -> Path:
    """The tokenizer that spells the run's tokens: of its policy, else of the model that it began with."""
    folders = [run / "rl" / "policy", run / "sft" / "policy", run / "model"]
    config = run / "rl" / "config.yaml"
    if config.is_file():
        folders.insert(0, Path(str(OmegaConf.load(config).get("init_from", ""))))
    for folder in folders:
        if (folder / TOKENIZER).is_file():
            return folder / TOKENIZER
    raise UserError(f"no {TOKENIZER} in {', '.join(map(str, folders))}: the text of the tokens cannot be shown.")
