"""A chosen layout as a file of configs/parallel/."""

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader

from retool_mcore.errors import UserError
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Plan, Problem

BASE = "1gpu"  # the group that a written file is laid over: its settings are those of all GPUs


def config_text(problem: Problem, plan: Plan, command: str) -> str:
    found = {"machine": problem.machine, "nodes": problem.nodes, "rl": problem.rl, "lengths": problem.batch.lengths}
    found |= {"plan": plan, "layout": plan.layout, "longest": problem.batch.longest}
    template = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, keep_trailing_newline=True)
    return template.get_template("parallel.yaml.jinja").render(**found, command=command, base=BASE, gib=GIB)


def check_target(path: Path, config_dir: Path) -> None:
    """Raises UserError unless `path` is a new NAME.yaml in configs/parallel/, where `parallel=NAME` finds it."""
    wanted = config_dir / "parallel"
    if path.absolute().parent.resolve() != wanted.resolve() or not re.fullmatch(r"[\w.-]+\.yaml", path.name):
        raise UserError(f"--write {path}: expected a NAME.yaml in configs/parallel/, so that parallel=NAME finds it.")
    if path.exists():
        raise UserError(f"--write {path}: the file exists; remove it first or choose another name.")
