"""A run's trajectories for the viewer: the index of all of them, and one at a time with its text."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from retool_mcore.errors import UserError
from retool_mcore.metrics import schema
from retool_mcore.metrics.records import INDEX, index_step, read_step, step_files
from retool_mcore.view.detail import detail

TOKENIZER = "tokenizer.json"
PARTS = {"rl": "rl/trajectories", "audit": "rl/audit"}  # what a run holds as step files


class Source:
    """Trajectories of the folder `run`: part "rl", "audit" (those that stopped a run) or "eval/LABEL".

    Raises UserError when there are none, or no tokenizer.
    """

    def __init__(self, run: Path, part: str = "rl"):
        self.run, self.part = run.resolve(), part
        self.evaluated: list[dict] | None = None
        if part in PARTS:
            self.folder = self.run / PARTS[part]
            if not step_files(self.folder):
                what = "whose RL has ended a step" if part == "rl" else "that the mask audit has stopped"
                raise UserError(f"{self.run} holds no trajectories: give the folder of a run {what}.")
        else:
            self.folder = self.run / part
            self.evaluated = read_evaluation(self.folder)
        self._tokenizer = Tokenizer.from_file(str(find_tokenizer(self.run, part)))
        self._problems: dict[str, str] | None = None
        self._steps: dict[Path, tuple[tuple, pyarrow.Table]] = {}  # what is read of a step file, and of which one

    def index(self, places: Sequence[tuple[int, int]] | None = None) -> dict:
        """Columns by name, one value a trajectory, and `run`; only those at `places`, [(step, row), ...], if given.

        `seconds` is the time that a trajectory waited for engine and interpreter.
        """
        if self.evaluated is None:
            self.refresh()
            columns = pyarrow.concat_tables([table for _, table in self._steps.values()]).to_pydict()
        else:
            table = schema.to_table(self.evaluated).select(list(INDEX.values())).rename_columns(list(INDEX))
            columns = table.to_pydict() | {"row": list(range(len(table)))}
        waits = zip(columns.pop("generate_s"), columns.pop("tool_s"), strict=True)
        columns["seconds"] = [round((generate or 0.0) + (tool or 0.0), 3) for generate, tool in waits]
        if places is not None:
            order = {place: n for n, place in enumerate(zip(columns["step"], columns["row"], strict=True))}
            kept = [order[place] for place in places if place in order]
            columns = {name: [values[n] for n in kept] for name, values in columns.items()}
        return {"run": self.run.name if self.part == "rl" else f"{self.run.name}/{self.part}"} | columns

    def refresh(self) -> tuple:
        """Read the step files that are new; returns what tells this state of the folder from another."""
        if self.evaluated is not None:
            return ()
        seen = {}
        for path in step_files(self.folder).values():
            found = path.stat()
            version = found.st_mtime_ns, found.st_size, found.st_ino
            known = self._steps.get(path)
            seen[path] = known if known and known[0] == version else (version, index_step(path))
        if not seen:
            raise UserError(f"{self.folder} holds no trajectories any more: start `retool view` again.")
        self._steps = seen
        return tuple((path, version) for path, (version, _) in seen.items())

    def detail(self, step: int, row: int) -> dict:
        """See view/detail.py. Raises UserError when there is no such trajectory."""
        return detail(self._record(step, row), self._decode)

    def problems(self, text: str) -> list[str]:
        """The problems, "SOURCE #INDEX", whose prompt holds `text`, by lower case."""
        if self._problems is None:
            self._problems = self._read_problems()
        return [name for name, prompt in self._problems.items() if text.lower() in prompt]

    def _record(self, step: int, row: int) -> dict:
        if self.evaluated is None:
            files = step_files(self.folder)
            if step not in files:
                raise UserError(f"{self.run} has no trajectories of step {step}: it has {', '.join(map(str, files))}.")
            return read_step(files[step], rows=[row])[0]
        if row >= len(self.evaluated):
            raise UserError(f"{self.folder} holds {len(self.evaluated)} trajectories, there is no row {row}.")
        return self.evaluated[row]

    def _read_problems(self) -> dict[str, str]:
        prompts = {}
        columns = ["data_source", "index", "prompt_ids"]
        for path in [None] if self.evaluated is not None else step_files(self.folder).values():
            for record in self.evaluated if path is None else read_step(path, columns=columns):
                prompts.setdefault(f"{record['data_source']} #{record['index']}", record["prompt_ids"])
        return {name: self._decode([int(i) for i in ids]).lower() for name, ids in prompts.items()}

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def coded(columns: dict) -> dict:
    """`columns` with those of texts or lists as {"words": distinct values, "codes": place in them of every value}."""
    found = {}
    for name, values in columns.items():
        if isinstance(values, list) and values and isinstance(values[0], str | list):
            words: dict = {}
            keys = [tuple(value) if isinstance(value, list) else value for value in values]
            codes = [words.setdefault(key, len(words)) for key in keys]
            values = {"words": list(words), "codes": codes}
        found[name] = values
    return found


def read_evaluation(folder: Path) -> list[dict]:
    """The records of an evaluation's folder, samples of one problem as one group. Raises UserError if it has none."""
    path = folder / "trajectories.jsonl"
    if not path.is_file():
        found = ", ".join(sorted(p.parent.name for p in folder.parent.glob("*/trajectories.jsonl")))
        raise UserError(f"There is no {path}: {f'the labels are {found}' if found else 'run `retool eval` first'}.")
    metrics = folder / "metrics.json"
    step = json.loads(metrics.read_text()).get("step", 0) if metrics.is_file() else 0
    try:
        records = read_step(path)
    except (pyarrow.ArrowException, TypeError, KeyError) as error:
        raise UserError(f"{path} does not hold trajectories of `retool eval` ({error}).") from None
    return [{"step": step, "uid": f"{r['data_source']}/{r['index']}"} | r for r in records]


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
