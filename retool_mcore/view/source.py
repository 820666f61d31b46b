"""A run's trajectories for the viewer: the columns of all of them, and one at a time with its text."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from retool_mcore.errors import UserError
from retool_mcore.metrics import schema
from retool_mcore.metrics.records import read_columns, read_step, step_files
from retool_mcore.state.progress import attempt_files
from retool_mcore.view.columns import READ, Columns
from retool_mcore.view.detail import detail
from retool_mcore.view.query import Data, entries

TOKENIZER = "tokenizer.json"
PARTS = {"rl": "rl/trajectories", "audit": "rl/audit"}  # what a run holds as step files
BUDGET_S = 0.2  # for step files, in a request: one that comes while many are unread is answered with what is read


class Source:
    """Trajectories of the folder `run`: part "rl", "audit" (those that stopped a run) or "eval/LABEL".

    Raises UserError when there are none, and no curves of a stage either, or no tokenizer.
    """

    def __init__(self, run: Path, part: str = "rl"):
        self.run, self.part = run.resolve(), part
        self.version = 0  # of the columns
        self.unread = 0  # step files
        self.evaluated: list[dict] | None = None
        self._steps: dict[int, tuple[tuple, dict[str, np.ndarray]]] = {}  # what is read of a step, and its file
        self._joined: tuple[int, dict[str, np.ndarray]] = (-1, {})
        self._tokenizer: Tokenizer | None = None
        self._columns = Columns(self._decode)
        self.folder = self.run / PARTS.get(part, part)
        if part not in (known := parts(self.run)):
            if part != "rl" or not any(attempt_files(self.run / stage) for stage in ("sft", "rl")):
                has = f"it has {', '.join(known)}" if known else "give the folder of a run whose SFT or RL has begun"
                raise UserError(f"{self.run} holds no trajectories of {part}: {has}.")
        elif part not in PARTS:
            self.evaluated = read_evaluation(self.folder)
            self._steps[0] = (), self._columns.of(schema.to_table(self.evaluated))
        if part in known:
            self._decode([])

    def refresh(self, budget_s: float = BUDGET_S, wanted: str = "") -> None:
        """Read new step files, that of the step `wanted` and then the newest first, in this time; `unread` are left."""
        if self.evaluated is not None:
            return
        # The first answer is to come at once.
        files, end = step_files(self.folder), time.monotonic() + (budget_s if self._steps else budget_s / 4)
        for step in self._steps.keys() - files.keys():
            del self._steps[step]
            self.version += 1
        new = [step for step, path in files.items() if self._steps.get(step, (None,))[0] != _version(path)]
        new.sort(key=lambda step: (str(step) == wanted, step))
        self.unread = len(new)
        for self.unread in reversed(range(len(new))):
            self._read(new[self.unread], files[new[self.unread]])
            if time.monotonic() >= end:
                break

    def _read(self, step: int, path: Path) -> None:
        self._steps[step] = _version(path), self._columns.of(read_columns(path, READ))
        self.version += 1

    def data(self) -> Data:
        """The columns of what is read, steps ascending, and their words."""
        if self._joined[0] != self.version:
            own = [self._steps[step][1] for step in sorted(self._steps)] or [self._columns.of(schema.to_table([]))]
            self._joined = self.version, {name: np.concatenate([part[name] for part in own]) for name in own[0]}
        return self._joined[1], self._columns.words

    def shown(self, step: int, row: int) -> dict:
        """view/detail.py of a trajectory, its `entry` in the list and those of its `group`.

        Raises UserError when there is no such trajectory.
        """
        details = detail(self._record(step, row), self._decode)
        columns = self._steps[step if self.evaluated is None else 0][1]
        place = np.flatnonzero((columns["step"] == step) & (columns["row"] == row))
        if not len(place):  # an evaluation's are all of one step
            raise UserError(f"{self.folder} has no trajectory {row} in step {step}.")
        group = np.flatnonzero(columns["uid"] == columns["uid"][place[0]])
        data = columns, self._columns.words
        return {"entry": entries(data, place)[0], "group": entries(data, group)} | details

    def _record(self, step: int, row: int) -> dict:
        if self.evaluated is None:
            files = step_files(self.folder)
            if step not in files:
                raise UserError(f"{self.run} has no trajectories of step {step}: it has {', '.join(map(str, files))}.")
            if self._steps.get(step, (None,))[0] != _version(files[step]):
                self._read(step, files[step])
            return read_step(files[step], rows=[row])[0]
        if row >= len(self.evaluated):
            raise UserError(f"{self.folder} holds {len(self.evaluated)} trajectories, there is no row {row}.")
        return self.evaluated[row]

    def _decode(self, ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(find_tokenizer(self.run, self.part)))
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def parts(run: Path) -> list[str]:
    """Return the parts of the run that hold trajectories: see Source."""
    evaluations = sorted(f"eval/{path.parent.name}" for path in run.glob("eval/*/trajectories.jsonl"))
    return [*(part for part, folder in PARTS.items() if step_files(run / folder)), *evaluations]


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_evaluation(folder: Path) -> list[dict]:
    """The records of an evaluation's folder, samples of one problem as one group. Raises UserError for a broken one."""
    path = folder / "trajectories.jsonl"
    metrics = folder / "metrics.json"
    step = json.loads(metrics.read_text()).get("step", 0) if metrics.is_file() else 0
    try:
        return [{"step": step, "uid": f"{r['data_source']}/{r['index']}"} | r for r in read_step(path)]
    except (pyarrow.ArrowException, TypeError, KeyError) as error:
        raise UserError(f"{path} does not hold trajectories of `retool eval` ({error}).") from None


def find_tokenizer(run: Path, part: str = "rl") -> Path:
    """The tokenizer that spells the tokens: of the policy that wrote them, else of what the run began with."""
    folders = [run / "rl" / "policy", run / "sft" / "policy", run / "model"]
    own, key = ("rl", "init_from") if part in PARTS else (part, "policy_path")
    if (config := run / own / "config.yaml").is_file():
        folders.insert(0, Path(str(OmegaConf.load(config).get(key, ""))))
    for folder in folders:
        if (folder / TOKENIZER).is_file():
            return folder / TOKENIZER
    raise UserError(f"no {TOKENIZER} in {', '.join(map(str, folders))}: the text of the tokens cannot be shown.")
