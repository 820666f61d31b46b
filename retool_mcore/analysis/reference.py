"""Reference curves: training accuracy by step of several seeds, and a run's place among them.

A file is JSON: {"name", "about", "config": {key: value}, "curves": {seed: [accuracy of step 1, 2, ...]}}. `config` has
the settings that the runs share. A run with another model, data set or recipe is refused; other differences are
reported.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pyarrow import parquet

from retool_mcore.analysis.arms import LOADER
from retool_mcore.analysis.statistics import interval
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

SHIPPED = Path(__file__).with_name("references")
PREFIX = "reference:"
LAST = 4  # steps of the verdict
# A run must have these as the reference has them, and the data set's own keys, data.NAME.*.
SAME = ("model.name", "model.shape", "data.name", "data.problems", "recipe.name", "recipe.reward.name")
_SHAPE = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")  # of config.json
REPORTED = (
    "model.lora.rank", "recipe.advantage", "recipe.answer", "recipe.clip_high", "recipe.kl_coefficient",
    "recipe.filters.all_equal", "pipeline.name", "correction.name", "rollout.format", "rollout.max_turns",
    "rollout.max_response_tokens", "rollout.temperature", "data.sft.steps", "train.batch", "train.n",
    "train.mini_batch", "train.lr", "train.warmup_steps",
)  # fmt: skip


def find_reference(name: str) -> dict:
    """The shipped reference NAME, or that of a JSON file. Raises UserError for anything else."""
    path = Path(name) if name.endswith(".json") else SHIPPED / f"{name}.json"
    if not path.is_file():
        shipped = ", ".join(sorted(own.stem for own in SHIPPED.glob("*.json")))
        raise UserError(f"{PREFIX}{name}: there is no such reference; shipped are {shipped}, or give a .json file.")
    try:
        content = json.loads(path.read_text())
        curves = {str(seed): [float(value) for value in curve] for seed, curve in content["curves"].items()}
        config = dict(content.get("config", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no reference ({error!r}): expected a name, about and curves by seed.") from None
    if len(curves) < 2 or min(map(len, curves.values())) < 1:
        raise UserError(f"{path}: a band needs curves of two seeds or more, with one step or more.")
    return {"name": name, "about": ""} | content | {"config": config, "curves": curves}


def write_reference(path: Path, about: str, runs: Mapping[Path, Sequence[float]]) -> None:
    """Write a reference file. runs: the accuracy by step of each run, by its folder.

    Raises UserError for fewer than two runs, for runs of one seed, and for runs with different settings.
    """
    if path.suffix != ".json":
        raise UserError(f"--write-reference {path}: expected the name of a .json file.")
    if len(runs) < 2:
        raise UserError(f"--write-reference {path}: a band needs two runs or more, with a seed each.")
    first, *others = runs
    settings = {run: settings_of(run) for run in runs}
    seeds = {run: settings[run].pop("seed", None) for run in runs}
    for run in others:
        if differing := differences(settings[first], dict.fromkeys(settings[first]) | settings[run]):
            raise UserError(f"--write-reference {path}: {first} and {run} differ in {'; '.join(differing)}.")
    if len(set(seeds.values())) < len(runs):
        raise UserError(
            f"--write-reference {path}: the runs have the seeds {list(seeds.values())}; one each is needed."
        )
    shortest = min(map(len, runs.values()))
    curves = {f"seed {seeds[run]}": [round(value, 5) for value in runs[run][:shortest]] for run in runs}
    content = {"name": path.stem, "about": about, "config": settings[first], "curves": curves}
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def check_settings(run: Path, reference: Mapping) -> list[str]:
    """Return the differences between the run's settings and the reference's that do not forbid a comparison.

    Raises UserError where model, data or recipe differ.
    """
    own, theirs = settings_of(run), reference["config"]
    strict = {key for key in theirs if key in SAME or key.startswith(f"data.{theirs.get('data.name')}.")}
    if differing := differences(own, {key: theirs[key] for key in strict}):
        raise UserError(
            f"{run} is no run of {PREFIX}{reference['name']}: it differs in {'; '.join(differing)}. Compare it with a "
            "reference of its own model, data and recipe (docs/explain.md: --write-reference)."
        )
    return differences(own, {key: value for key, value in theirs.items() if key not in strict})


def differences(own: Mapping, theirs: Mapping) -> list[str]:
    """Return for each key of `theirs` that `own` has another value of: the key and both values."""
    return [f"{key} ({own.get(key)} and {value})" for key, value in sorted(theirs.items()) if own.get(key) != value]


def settings_of(run: Path) -> dict[str, Any]:
    """The settings of a run's RL that its curve depends on, by their dotted keys, and its seed.

    Paths are left out: `model.shape` stands for a model's folder, and `data.problems`, a digest of the training
    problems, for the files of data=file. Raises UserError where RL's configuration is not there.
    """
    path = run / "rl" / "config.yaml"
    try:
        config = yaml.load(path.read_text(), Loader=LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}): the settings of a run are needed.") from None
    flat = dict(_flat(config, ""))
    source = f"data.{flat.get('data.name')}."
    kept = {key: value for key, value in flat.items() if key in (*SAME, *REPORTED, "seed") or key.startswith(source)}
    kept = {key: value for key, value in kept.items() if not key.endswith(".path") and "/" not in str(value)}
    folders = [flat.get("init_from"), run / "rl/policy", run / "sft/policy", run / "model", flat.get("model.path")]
    if shape := _shape([Path(folder) for folder in folders if folder]):
        kept["model.shape"] = shape
    files = [Path(value) for key, value in flat.items() if key.startswith("data.train_files") and value]
    if flat.get("data.name") == "file" and (digest := _problems(run, files)):
        kept["data.problems"] = digest
    return kept


def _shape(folders: Sequence[Path]) -> str | None:
    """The shape of the first of these models that is there."""
    path = next((path for folder in folders if (path := folder / "config.json").is_file()), None)
    if path is None:
        return None
    config = json.loads(path.read_text())
    return ", ".join(f"{name} {config[name]}" for name in _SHAPE if name in config)


def _problems(run: Path, files: Sequence[Path]) -> str | None:
    """A digest of the prepared files' prompts and answers in any order; None where one is not there.

    A run that was moved has them in its folder.
    """
    there = [path if path.is_file() else run / "data" / path.name for path in files]
    if not there or not all(path.is_file() for path in there):
        return None
    rows = [row for path in there for row in parquet.read_table(path, columns=["prompt", "reward_model"]).to_pylist()]
    lines = sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(below, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def place(curve: list[float], reference: Mapping) -> dict:
    """A run's place: by step the band that holds a further seed in 95 of 100 cases, and the verdict.

    The verdict is about the mean of the last LAST steps that both have: "within", "below" or "above" the band.
    """
    curves = list(reference["curves"].values())
    shared = min(len(curve), *map(len, curves))
    bands = [_band([own[step] for own in curves]) for step in range(shared)]
    inside = [low <= value <= high for value, (low, high) in zip(curve, bands, strict=False)]
    last = slice(max(0, shared - LAST), shared)
    low, high = _band([sum(own[last]) / len(own[last]) for own in curves])
    value = sum(curve[last]) / len(curve[last])
    return {
        "steps": shared,
        "inside": sum(inside),
        "value": round(value, 4),
        "band": [round(low, 4), round(high, 4)],
        "verdict": "below" if value < low else "above" if value > high else "within",
    }


def _band(values: list[float]) -> tuple[float, float]:
    """The 95 % prediction interval of one more value."""
    mean, half = interval(values)
    wider = half * (1 + len(values)) ** 0.5  # t s sqrt(1 + 1/n) of t s / sqrt(n)
    return mean - wider, mean + wider
