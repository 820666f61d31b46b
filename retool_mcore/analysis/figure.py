"""Pictures of a comparison: arms as bands over the steps, claims as a forest. PNG or SVG by the file's name."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from retool_mcore.analysis.statistics import interval


def drawing(height: float):
    """(a figure 6 inches wide, its axes)"""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def bands(
    arms: Mapping[str, tuple[Sequence[Sequence[float]], Sequence[float]]],
    paths: Iterable[Path],
    lowest: float = 0.0,
) -> None:
    """Draw accuracy over the training steps: an arm's mean and the range of its runs, and what its last policies have.

    arms: label -> (curves of its runs, cut to the shortest; accuracies of their ends, may be empty), all in [0, 1].
    An end is a point with its 95 % interval. lowest: of the axis, in per cent.
    """
    figure, axes = drawing(3.6)
    axes.set(xlabel="RL step", ylabel="accuracy, %", ylim=(lowest, 100))
    axes.grid(alpha=0.3)
    for place, (label, (runs, ends)) in enumerate(arms.items()):
        shortest = min((len(curve) for curve in runs), default=0)
        if not shortest:
            continue
        curves = np.array([curve[:shortest] for curve in runs]) * 100
        steps = np.arange(1, shortest + 1)
        (line,) = axes.plot(steps, curves.mean(0), label=label)
        axes.fill_between(steps, curves.min(0), curves.max(0), alpha=0.2, color=line.get_color())
        if ends:
            mean, half = interval([100 * end for end in ends])
            half = half if np.isfinite(half) else 0.0
            where = steps[-1] + 0.7 + 0.4 * place
            axes.errorbar(where, mean, half, fmt="o", color=line.get_color(), markersize=4)
    axes.legend(fontsize="small", loc="best")
    for path in paths:
        figure.savefig(path, dpi=150)


def forest(claims: Sequence[Mapping], path: Path) -> None:
    """Draw every claim's pairs as points, and their mean with its 95 % interval, in points of accuracy."""
    figure, axes = drawing(0.6 + 0.4 * len(claims))
    axes.axvspan(-5, 5, color="0.93")
    axes.axvline(0, color="0.6", linewidth=0.8)
    for place, row in enumerate(reversed(claims)):
        low, high = row["interval"]
        axes.plot(row["pairs"], [place] * len(row["pairs"]), "o", color="0.6", markersize=3)
        axes.errorbar(row["mean"], place, xerr=[[row["mean"] - low], [high - row["mean"]]], fmt="s", color="C0")
    names = [f"{row['claim']}: {row['criterion'].split(',')[0]}" for row in reversed(claims)]
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="points of accuracy")
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xticks([-10, -5, 0, 5, 10, 30, 60], ["-10", "-5", "0", "5", "10", "30", "60"])
    figure.savefig(path, dpi=150)
