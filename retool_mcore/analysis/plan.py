"""A comparison's plan: arms, seeds and criteria, in a file that is older than the runs that it judges."""

import subprocess
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retool_mcore.analysis.statistics import RULES
from retool_mcore.errors import UserError, refused_value

MEASURES = {
    "evaluation": "accuracy of `retool eval` (RUN/eval/LABEL), problem by problem",
    "validation": "accuracy on held-back problems at the last step that all runs were validated at",
    "training": "training accuracy, mean of the last `late` steps that all runs have",
}


class Claim(BaseModel):
    """One criterion: `better` against `worse`, in points, by one of RULES.

    Points are those of accuracy, or with `of: calls` the calls of 100 trajectories. sources: the data sources that
    count; null: all. worse_at: `last`, or `start` for the validation of `worse` before its first step, which measures
    the policy that its RL began with. Calls and sources need measure=validation.
    """

    model_config = ConfigDict(extra="forbid")
    better: str
    worse: str
    rule: str
    points: float
    of: Literal["accuracy", "calls"] = "accuracy"
    sources: list[str] | None = None
    worse_at: Literal["last", "start"] = "last"


class Plan(BaseModel):
    """arms: name -> the run's folder below `runs`, with {seed} in it; label: of the evaluation; late: steps of
    measure=training."""

    model_config = ConfigDict(extra="forbid")
    runs: str = "runs"
    arms: dict[str, str]
    seeds: list[int] = Field(min_length=1)
    measure: str = "evaluation"
    label: str = "rl"
    late: int = Field(default=8, ge=1)
    claims: dict[str, Claim]

    def folder(self, arm: str, seed: int) -> Path:
        """The folder of one run."""
        return Path(self.runs) / self.arms[arm].replace("{seed}", str(seed))


def read_plan(path: Path) -> Plan:
    """Read and check a plan. Raises UserError for what is no plan."""
    try:
        content: Any = yaml.safe_load(path.read_text())
        plan = Plan(**content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        raise UserError(f"{path} is no plan of a comparison ({' '.join(str(error).split())[:200]}).") from None
    except ValidationError as error:
        raise UserError(f"{path}: {refused_value(error)}. docs/explain.md shows a plan.") from None
    if plan.measure not in MEASURES:
        raise UserError(f"{path}: measure is {plan.measure!r}, one of {', '.join(MEASURES)} was expected.")
    if len(set(plan.seeds)) < len(plan.seeds):
        raise UserError(f"{path}: seeds are given twice: {plan.seeds}. Each is one pair of runs.")
    for arm, template in plan.arms.items():
        if "{seed}" not in template and len(plan.seeds) > 1:
            raise UserError(f"{path}: arm {arm} is {template!r} for all seeds: put {{seed}} into the folder's name.")
    for name, claim in plan.claims.items():
        if claim.rule not in RULES:
            raise UserError(
                f"{path}: claim {name} has the rule {claim.rule!r}, one of {', '.join(RULES)} was expected."
            )
        if plan.measure != "validation" and (claim.of, claim.sources, claim.worse_at) != ("accuracy", None, "last"):
            raise UserError(f"{path}: claim {name} has of, sources or worse_at: these need measure: validation.")
        for arm in (claim.better, claim.worse):
            if arm not in plan.arms:
                raise UserError(f"{path}: claim {name} names the arm {arm!r}; the arms are {', '.join(plan.arms)}.")
    return plan


def fixed_at(path: Path) -> float:
    """When the plan got its present content, seconds since 1970: its commit's time where git has it unchanged, else
    the file's."""
    folder = str(path.resolve().parent)
    git = ["git", "-C", folder]
    name = path.resolve().name
    try:
        changed = subprocess.run([*git, "status", "--porcelain", "--", name], capture_output=True, text=True)
        commit = subprocess.run([*git, "log", "-1", "--format=%ct", "--", name], capture_output=True, text=True)
    except OSError:  # no git here
        return path.stat().st_mtime
    tracked = changed.returncode == 0 and not changed.stdout.strip() and commit.stdout.strip().isdigit()
    return float(commit.stdout) if tracked else path.stat().st_mtime
