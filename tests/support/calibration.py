"""Measured steps beside predicted ones, and the fit of the constants that only a measurement can give.

A row, as benchmarks/train/update.py writes it: {"shape": name or sizes, "layers", "layout": fields of Layout,
"lengths": {"count", "tokens"} or {"spread": [sequences, longest, mean]}, "gpu", "settings": verl's,
"peak_memory_gb" (10^9 bytes) or "peak_memory_gib", "step_s"}.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from retool_mcore.errors import UserError
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import MACHINES, Constants, Machine
from retool_mcore.planner.memory import GIB, Memory, memory
from retool_mcore.planner.settings import switches
from retool_mcore.planner.shape import SHAPES, Shape
from retool_mcore.planner.time import Time, seconds

FITTED = ("matmul", "attention", "step_s")  # of machine.Constants; no more, or a fit explains anything
BOUNDS = {"matmul": (0.3, 1.0), "attention": (0.1, 1.0), "step_s": (0.0, 1.0)}


@dataclass(frozen=True)
class Prediction:
    """`memory_bytes` is to be compared with torch.cuda.max_memory_allocated, `step_seconds` with one optimizer step."""

    memory_bytes: float
    step_seconds: float
    memory: Memory
    time: Time


def predict(shape: Shape, layout: Layout, batch: Batch | Sequence[int], machine: Machine) -> Prediction:
    """The peak of the fullest rank and the time of one step: forward, backward and optimizer over the whole batch.

    `batch`: the lengths in tokens of all sequences of the step, over all data-parallel ranks, or a Batch. Raises
    UserError for a layout that does not divide the model, and for a sequence that no micro-batch can take.
    """
    if not isinstance(batch, Batch):
        batch = Batch(tuple(int(length) for length in batch))
    held, took = memory(shape, layout, batch), seconds(shape, layout, batch, machine)
    return Prediction(held.peak, took.step, held, took)


@dataclass(frozen=True)
class Case:
    """A measured step: `memory` in bytes, `seconds` of an optimizer step; None where it was not measured."""

    id: str
    name: str
    shape: Shape
    layout: Layout
    batch: Batch
    machine: Machine
    memory: float | None
    seconds: float | None

    def predict(self, constants: Constants | None = None) -> Prediction:
        machine = self.machine if constants is None else replace(self.machine, constants=constants)
        return predict(self.shape, self.layout, self.batch, machine)


def read(path: Path) -> list[Case]:
    """The rows of a file of results that the model covers: not those that failed, nor what runs in FP8 or on FSDP."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no file of measured rows ({error}): expected rows of benchmarks.train.update."
        ) from error
    return [case(row) for row in rows if covered(row)]


def covered(row: Mapping) -> bool:
    settings = row.get("settings") or {}
    transformer = settings.get("engine", {}).get("override_transformer_config", {})
    return "error" not in row and not transformer.get("fp8") and settings.get("strategy", "megatron") == "megatron"


def case(row: Mapping) -> Case:
    shape = SHAPES[row["shape"]] if isinstance(row["shape"], str) else Shape(**row["shape"])
    if "layers" in row:
        shape = replace(shape, layers=row["layers"])
    memory = row["peak_memory_gb"] * 1e9 if "peak_memory_gb" in row else None
    memory = row["peak_memory_gib"] * GIB if row.get("peak_memory_gib") else memory
    layout = layout_of(row)
    name = row["shape"] if isinstance(row["shape"], str) else row.get("name", "other")
    sizes = "".join(
        f" {size.upper()}{getattr(layout, size)}" for size in ("tp", "pp", "cp", "dp") if getattr(layout, size) > 1
    )
    label = f"{name} x{shape.layers}{sizes} {row.get('settings_name', 'stock')} {row.get('kind', '')}".strip()
    return Case(
        row.get("id", ""),
        label,
        shape,
        layout,
        batch_of(row["lengths"]),
        machine_of(row["gpu"]),
        memory,
        row.get("step_s"),
    )


def batch_of(lengths: Mapping) -> Batch:
    if "spread" in lengths:
        return Batch.spread(*lengths["spread"])
    return Batch((lengths["tokens"],) * lengths["count"])


def machine_of(gpu: str) -> Machine:
    for name, machine in MACHINES.items():
        if name.partition("-")[0] in gpu:
            return machine
    raise UserError(
        f"a row was measured on {gpu!r}, of which the planner knows nothing: expected {', '.join(MACHINES)}."
    )


def layout_of(row: Mapping) -> Layout:
    """A row's layout, its switches read from verl's settings."""
    known = {field.name for field in fields(Layout)}
    layout = Layout(**{name: value for name, value in row["layout"].items() if name in known})
    if "settings" not in row:
        return layout
    found = switches(row["settings"].get("engine", {}), fused_kernels=bool(row["settings"].get("use_fused_kernels")))
    return replace(layout, **found)


def calibrate(cases: Iterable[Case], start: Constants | None = None, names: Sequence[str] = FITTED) -> Constants:
    """`start` with the constants `names`, three at most, fitted to the cases' seconds: least squares of the logarithms.

    Raises UserError when there are fewer timed cases than constants.
    """
    timed = [case for case in cases if case.seconds]
    start = start or Constants()
    if not 1 <= len(names) <= len(FITTED):
        raise UserError(f"{len(names)} constants to fit: expected 1 to {len(FITTED)}.")
    if len(timed) < len(names):
        raise UserError(f"{len(timed)} timed rows do not fix {len(names)} constants: measure more.")

    def with_values(values: np.ndarray) -> Constants:
        return replace(start, **dict(zip(names, map(float, values), strict=True)))

    def residuals(values: np.ndarray) -> np.ndarray:
        constants = with_values(values)
        return np.array([np.log(case.predict(constants).step_seconds / case.seconds) for case in timed])

    low, high = zip(*(BOUNDS[name] for name in names), strict=True)
    first = np.clip([getattr(start, name) for name in names], low, high)
    return with_values(least_squares(residuals, first, bounds=(low, high)).x)
