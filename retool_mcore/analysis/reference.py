"""Reference curves: training accuracy by step of several seeds, and a run's place among them.

A file is JSON: {"name", "about", "config": {key: value}, "curves": {seed: [accuracy of step 1, 2, ...]}}.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from retool_mcore.analysis.statistics import interval
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

SHIPPED = Path(__file__).with_name("references")
PREFIX = "reference:"
LAST = 4  # steps of the verdict


def find_reference(name: str) -> dict:
    """The shipped reference NAME, or that of a JSON file. Raises UserError for anything else."""
    path = Path(name) if name.endswith(".json") else SHIPPED / f"{name}.json"
    if not path.is_file():
        shipped = ", ".join(sorted(own.stem for own in SHIPPED.glob("*.json")))
        raise UserError(f"{PREFIX}{name}: there is no such reference; shipped are {shipped}, or give a .json file.")
    try:
        content = json.loads(path.read_text())
        curves = {str(seed): [float(value) for value in curve] for seed, curve in content["curves"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no reference ({error!r}): expected a name, about and curves by seed.") from None
    if len(curves) < 2 or min(map(len, curves.values())) < 1:
        raise UserError(f"{path}: a band needs curves of two seeds or more, with one step or more.")
    return {"name": name, "about": "", "config": {}} | content | {"curves": curves}


def write_reference(path: Path, name: str, about: str, curves: Mapping[str, list[float]]) -> None:
    """Write a reference file of these curves."""
    content = {"name": name, "about": about, "config": {}, "curves": {seed: own for seed, own in curves.items()}}
    write_atomically(path, json.dumps(content, indent=1) + "\n")


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
