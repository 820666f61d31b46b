"""The figures of a paper about one or several runs: PNG and SVG, and their numbers as CSV in the same folder."""

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from retool_mcore.errors import UserError
from retool_mcore.metrics.records import read_columns, step_files
from retool_mcore.state.progress import read_steps

FIGURES = json.loads(files("retool_mcore.metrics").joinpath("figures.json").read_text())  # figure -> panel -> curves
CALLS = ["tokens", "calls.list.element.start", "calls.list.element.code"]
POSITIONS = 20  # bars over the length of a response
COMPARED = 10  # the first and the last of so many parts of a run

Curve = tuple[str, Sequence[float], Sequence[float]]  # label, x, y


def draw(runs: Sequence[Path], out: Path) -> list[Path]:
    """Draws into the folder `out` what figures.json lists, over the steps, and `calls`: where in a response code is
    called, early and late; returns the files. `behaviour` has ReTool's six metrics (arXiv 2504.11536, "CI related
    behavior"). Several runs are drawn over each other. Raises UserError when no run has finished a step.
    """
    steps = {stage: [read_steps(run / stage) for run in runs] for stage in ("sft", "rl")}
    names = [_named(run, runs) for run in runs]
    figures = {
        figure: {title: _over(names, steps[panel["stage"]], panel["curves"]) for title, panel in panels.items()}
        for figure, panels in FIGURES.items()
    }
    calls = [curve for run, name in zip(runs, names, strict=True) for curve in _calls(run, name)]
    figures["calls"] = {"share of calls": calls}
    if not any(any(panels.values()) for panels in figures.values()):
        raise UserError(f"nothing to draw in {', '.join(map(str, runs))}: neither sft nor rl has finished a step.")
    out.mkdir(parents=True, exist_ok=True)
    return [path for figure, panels in figures.items() if any(panels.values()) for path in write(out / figure, panels)]


def _named(run: Path, runs: Sequence[Path]) -> str:
    return f"{run.resolve().name} " if len(runs) > 1 else ""


def _over(names: Sequence[str], runs: Sequence[Mapping], curves: Mapping[str, str]) -> list[Curve]:
    """The curves of each run, {step: metrics}."""
    result: list[Curve] = []
    for run, steps in zip(names, runs, strict=True):
        for label, name in curves.items():
            if own := {step: data[name] for step, data in steps.items() if name in data}:
                result.append((f"{run}{label}".strip(), [*own], [*own.values()]))
    return result


def _calls(run: Path, name: str) -> list[Curve]:
    """The share of the calls of code in each part of a response, of the first and of the last steps."""
    steps = step_files(run / "rl" / "trajectories")
    each, curves = max(1, len(steps) // COMPARED), []
    for part in (list(steps)[:each], list(steps)[each:][-each:]):
        begun = [
            call["start"] / row["tokens"]
            for step in part
            for row in read_columns(steps[step], CALLS).to_pylist()
            for call in row["calls"] or ()
            if call["code"]
        ]
        if begun:
            counts, edges = np.histogram(begun, POSITIONS, (0, 1))
            places = f"steps {part[0]} to {part[-1]}" if each > 1 else f"step {part[0]}"
            curves.append((f"{name}{places}", ((edges[1:] + edges[:-1]) / 2).tolist(), (counts / len(begun)).tolist()))
    return curves


def write(path: Path, panels: Mapping[str, Sequence[Curve]]) -> list[Path]:
    """Draw the panels, each of curves over the steps, as PNG, SVG and CSV of the name `path`; return the files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {title: curves for title, curves in panels.items() if curves}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    places = [figure.add_subplot(rows, columns, number) for number in range(1, len(panels) + 1)]
    with path.with_suffix(".csv").open("w", newline="") as file:
        numbers = csv.writer(file)
        numbers.writerow(["panel", "curve", "x", "y"])
        for axes, (title, curves) in zip(places, panels.items(), strict=True):
            axes.set(title=title, xlabel="part of the response" if path.name == "calls" else "step")
            axes.grid(alpha=0.3)
            for label, x, y in curves:
                axes.plot(x, y, label=label or None, marker="." if len(x) < 30 else None)
                numbers.writerows([title, label, *point] for point in zip(x, y, strict=True))
            if any(label for label, _, _ in curves):
                axes.legend(fontsize="small")
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    return [path.with_suffix(suffix) for suffix in (".png", ".svg", ".csv")]
