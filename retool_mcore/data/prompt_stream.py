"""The prompts of RL in an order that a seed and a position name; every epoch draws its own."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path

import torch

from retool_mcore.data.curriculum import Curriculum, problem_name
from retool_mcore.data.schema import rows_of
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

STATE = "prompts.json"  # in a checkpoint
Asked = tuple[str, int, int, int]  # a pending group: its uid, the step that asked for it, its row, the draw (seeds.py)


class Prompts:
    """The rows of the RL parquets `files` that `curriculum` takes, epoch after epoch."""

    def __init__(self, files: str | Iterable[str], seed: int, curriculum: Curriculum):
        self.rows, self.curriculum = rows_of(files), curriculum
        self.generator = torch.Generator().manual_seed(seed)  # one for all epochs, as torch's RandomSampler has it
        self.epoch, self.position, self.order = 0, 0, self._draw()
        self.fetched = 0  # rows since the last checkpoint, those that were passed over included

    def take(self, count: int) -> list[dict]:
        """The next `count` rows."""
        taken: list[dict] = []
        while len(taken) < count:
            row = self._next()
            if self.curriculum.takes(_name(row)):
                taken.append(row)
        return taken

    def row(self, number: int) -> dict:
        """Row `number` of the files as an episode reads it, with raw_prompt and index."""
        row = self.rows[number]
        extra = dict(row.get("extra_info") or {})
        return row | {
            "raw_prompt": row["prompt"],
            "extra_info": extra,
            "index": extra.get("index", 0),
            "number": number,
        }

    def copy(self) -> "Prompts":
        """The prompts as they stand, for a checkpoint that may be written after more are taken."""
        copied = copy.copy(self)
        copied.curriculum = copy.deepcopy(self.curriculum)
        return copied

    def measure(self, row: dict, accuracy: float) -> None:
        """A group of the row has ended with this mean verdict."""
        self.curriculum.measure(_name(row), accuracy)

    def metrics(self) -> dict[str, float]:
        """curriculum/retired: problems that are solved; curriculum/passed_over: rows since the last call."""
        curriculum = self.curriculum
        retired, passed_over = float(len(curriculum.retired)), float(curriculum.passed_over)
        curriculum.passed_over = 0
        return {"curriculum/retired": retired, "curriculum/passed_over": passed_over}

    def save(self, checkpoint: Path, asked: list[Asked]) -> None:
        """Write the position, and what is `asked` for and not taken yet."""
        state = {"epoch": self.epoch, "position": self.position, "rows": len(self.rows), "asked": asked}
        write_atomically(checkpoint / STATE, json.dumps(state))
        self.curriculum.save(checkpoint)
        self.fetched = 0

    def load(self, checkpoint: Path, left_out: int = 0) -> list[Asked]:
        """Go on as at this checkpoint; returns what was asked for then.

        left_out: rows to pass over, which led to an alarm; what was asked for is left out with them. Raises UserError
        where the files have another number of rows than at the checkpoint.
        """
        self.curriculum.load(checkpoint)
        if (path := checkpoint / STATE).is_file():
            state = json.loads(path.read_text())
            epoch, position, asked = state["epoch"], state["position"], [tuple(one) for one in state["asked"]]
            if state["rows"] != len(self.rows):
                raise UserError(
                    f"{checkpoint} was saved when data.train_files had {state['rows']} rows, and they have "
                    f"{len(self.rows)} now: give the files of the run's start, or another name=."
                )
        elif (checkpoint / "transfer_queue").exists():
            raise UserError(
                f"{checkpoint} was saved by an earlier release with rollouts in progress, which this one cannot read: "
                "give this run another name=; init_from= that checkpoint's policy keeps what it has learned."
            )
        else:  # of a trainer that saved verl's data loader: its count of offered rows says the same
            epoch, position = divmod(self.curriculum.offered, len(self.rows))
            asked = []
        for _ in range(epoch - self.epoch):
            self.order = self._draw()
        self.epoch, self.position = epoch, position
        for _ in range(left_out):
            self._next()
        self.fetched = 0
        return [] if left_out else asked

    def _draw(self) -> list[int]:
        return torch.randperm(len(self.rows), generator=self.generator).tolist()

    def _next(self) -> dict:
        if self.position == len(self.order):
            self.epoch, self.position, self.order = self.epoch + 1, 0, self._draw()
        self.position += 1
        self.fetched += 1
        return self.row(self.order[self.position - 1])


def _name(row: dict) -> str:
    return problem_name(row["data_source"], int(row["index"]))
