"""A finished or unfinished run in one table, read from its files alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Column, Table

from retool_mcore.cluster import status
from retool_mcore.errors import UserError, no_run
from retool_mcore.files import read_json_lines
from retool_mcore.state import alarms
from retool_mcore.state.progress import read_steps


@dataclass(frozen=True)
class Row:
    """A row of the table: a policy that was evaluated."""

    title: str
    folder: str  # of its evaluation, in RUN/eval
    stage: str | None = None  # which trained it
    optional: bool = False  # left out where there is no such evaluation


ROWS = (
    Row("before SFT", "init"),
    Row("after SFT", "sft", stage="sft"),
    Row("best of SFT", "sft-best", optional=True),
    Row("after RL", "rl", stage="rl"),
    Row("best of RL", "rl-best", optional=True),
)


def rows(run: Path) -> tuple[list[str], list[list[str]]]:
    """(column titles, cells) of the table; what the run does not have (yet) is "-".

    One accuracy column for each data source, mean@k over its problems. Raises UserError for no such folder, or a
    metrics file that is not what `retool eval` writes.
    """
    if not run.is_dir():
        raise no_run(run)
    scores = {row.folder: _read_evals(run / "eval", row.folder) for row in ROWS}
    accuracies = {name: _accuracies(metrics) for name, metrics in scores.items()}
    columns = sorted({column for figures in accuracies.values() for column in figures}) or ["accuracy"]
    cells = []
    for row in ROWS:
        name, stage = row.folder, row.stage
        if row.optional and not scores[name]:
            continue
        attempts = read_json_lines(run / stage / "attempts.jsonl") if stage else []
        minutes = sum(attempt["seconds"] for attempt in attempts) / 60
        ratio, length = (_over_sources(scores[name], figure) for figure in ("code_ratio", "response_length"))
        cells.append(
            [
                row.title,
                *(_percent(accuracies[name].get(column)) for column in columns),
                _percent(ratio),
                "-" if length is None else f"{length:.0f}",
                str(max(read_steps(run / stage), default="-")) if stage else "-",
                f"{minutes:.1f}" if attempts else "-",
            ]
        )
    return ["", *columns, "code ratio", "response tokens", "steps", "minutes"], cells


def print_table(run: Path, console: Console | None = None) -> None:
    """Prints the table of `rows`. Raises UserError as it does."""
    titles, cells = rows(run)
    table = Table(*(Column(title, justify="right" if title else "left") for title in titles), title=str(run))
    for row in cells:
        table.add_row(*row)
    console = console or Console()
    console.print(table)
    for stage in status.rows(run):
        if stage.state == "running":
            console.print(f"{stage.stage}: step {stage.step}, {stage.now}")
    if counts := alarms.count(run / "rl"):
        console.print(f"rl: {counts}")


def print_evaluation(folder: Path, console: Console | None = None) -> None:
    """Prints one evaluation, a line a data source: accuracies, the standard error of
    mean@k, share with code, tokens. Raises UserError as `rows`."""
    evaluation = _read_eval(folder / "metrics.json")
    names = list(dict.fromkeys(name for scores in evaluation["accuracy"].values() for name in scores))
    figures_of = (Column(title, justify="right") for title in (*names, "code ratio", "response tokens"))
    table = Table("data source", *figures_of, title=str(folder))
    for source, scores in evaluation["accuracy"].items():
        figures = evaluation["behaviour"].get(source, {})
        length = figures.get("response_length")
        errors = evaluation.get("standard_error", {}).get(source, {})
        # Of mean@k alone: with three errors a line is wider than a terminal.
        cells = [_percent(scores.get(name), errors.get(name) if name.startswith("mean") else None) for name in names]
        cells.append(_percent(figures.get("code_ratio")))
        table.add_row(source, *cells, "-" if length is None else f"{length:.0f}")
    console = console or Console()
    if "policy" in evaluation:
        console.print(f"policy: step {evaluation['step']}, {evaluation['policy']}", soft_wrap=True)
    console.print(table)


def _read_evals(folder: Path, policy: str) -> dict:
    """Metrics of a policy's evaluation, joined with those of problems that it read itself (labels POLICY-FILES)."""
    evaluations: dict[str, dict] = {}
    for path in [*sorted(folder.glob(f"{policy}-*/config.yaml")), folder / policy / "config.yaml"]:
        if path.parent.name == policy or yaml.safe_load(path.read_text()).get("policy") == policy:
            for part, values in _read_eval(path.with_name("metrics.json")).items():
                if isinstance(values, dict):
                    evaluations[part] = evaluations.get(part, {}) | values
    return evaluations


def _read_eval(path: Path) -> dict:
    if not path.is_file():
        return {}
    try:
        metrics = json.loads(path.read_text())
    except ValueError:
        metrics = None
    if not (isinstance(metrics, dict) and {"accuracy", "behaviour"} <= metrics.keys()):
        raise UserError(f"{path} is not what `retool eval` writes: remove it and run `retool eval` again.")
    return metrics


def _accuracies(metrics: dict) -> dict[str, float]:
    """{column title: mean@k} of every data source."""
    return {
        f"{source} {name}": value
        for source, scores in metrics.get("accuracy", {}).items()
        for name, value in scores.items()
        if name.startswith("mean@")
    }


def _over_sources(metrics: dict, figure: str) -> float | None:
    """A behaviour figure: that of all samples, else the mean of the sources' own."""
    sources = metrics.get("behaviour", {})
    values = [source[figure] for source in sources.values() if figure in source]
    return sources.get("all", {}).get(figure, sum(values) / len(values) if values else None)


def _percent(share: float | None, error: float | None = None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if error is None else f"{100 * share:.1f} ± {100 * error:.1f} %"
