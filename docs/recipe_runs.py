"""Runs of the recipes that were seen to their end, for docs/recipes.md; `python -m docs.recipe_runs RUN...`
adds.

A run counts with what its own files say (RUN/rl/config.yaml and its metrics); a later one replaces it.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.state.progress import read_steps

FILE = CONFIG_DIR.parent / "docs" / "recipe_runs.json"
# What of each step is kept: the mean reward of its trajectories, the loss, and the norm of the gradient. A loss whose
# advantages sum up to 0 is nearly 0 where the policy is the one that wrote the trajectories.
METRICS = {"reward": "critic/score/mean", "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm"}
# Updates by which the oldest token of a step lags behind; told where there was any.
STALENESS = "training/off_policy/trajectory_staleness_worst/max"
KEY = ("recipe", "advantage", "pipeline")


def record(run: Path, commit: str) -> dict:
    """What is kept of the RL stage of the run folder `run`. Raises UserError when it did not come to its end."""
    stage = run / "rl"
    if not (stage / "COMPLETE").is_file():
        raise UserError(f"{stage} holds no RL run that came to its end: give the folder of one that did.")
    config, steps = OmegaConf.load(stage / "config.yaml"), read_steps(stage)
    layout = config.parallel
    kept = METRICS | ({"staleness": STALENESS} if any(step.get(STALENESS) for step in steps.values()) else {})
    return {
        "recipe": config.recipe.name,
        "advantage": config.recipe.advantage,
        "pipeline": config.pipeline.name,
        "model": config.model.name,
        "layout": f"{layout.device}, TP{layout.tp}" + (f" PP{layout.pp}" if layout.pp > 1 else ""),
        "commit": commit,
        "steps": len(steps),
        "values": {name: [float(f"{step[key]:.3g}") for step in steps.values()] for name, key in kept.items()},
    }


def runs(path: Path = FILE) -> dict[tuple[str, str, str], dict]:
    """The runs by recipe, advantage and pipeline."""
    return {tuple(run[key] for key in KEY): run for run in json.loads(path.read_text())} if path.is_file() else {}


def format_run(run: Mapping | None) -> str:
    """A run in a cell of a table."""
    if run is None:
        return "none"
    told = (f"{name.replace('_', ' ')} {_ends(values)}" for name, values in run["values"].items())
    return f"{run['steps']} steps on {run['layout']} ({run['commit']}): {'; '.join(told)}"


def _ends(values: list[float]) -> str:
    """The first three values and, where there are more, the last."""
    return ", ".join(f"{value:g}" for value in values[:3]) + (f" ... {values[-1]:g}" if len(values) > 3 else "")


def main(words: list[str] | None = None, path: Path = FILE) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.recipe_runs", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run whose RL stage is complete")
    chosen = parser.parse_args(words).runs
    git = ["git", "-C", str(CONFIG_DIR), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    found = [record(run, commit) for run in chosen]
    known = runs(path) | {tuple(run[key] for key in KEY): run for run in found}
    write_atomically(path, json.dumps([known[key] for key in sorted(known)], indent=1) + "\n")
    for run in found:
        print(f"{run['recipe']}: {format_run(run)}")


if __name__ == "__main__":
    main()
