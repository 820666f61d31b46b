"""The inputs of a comparison, read from a run: accuracy by problem, training curve, start time and cost."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml

from retool_mcore.errors import UserError, no_run
from retool_mcore.files import read_json_lines
from retool_mcore.metrics.records import read_step
from retool_mcore.metrics.validation import FILE
from retool_mcore.state.progress import read_steps

CURVE = "reward/accuracy"
TOKENS = "perf/total_num_tokens"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Validated:
    """One validation: of each problem the accuracy, and the data source and the calls a trajectory, which runs of an
    older version do not have."""

    accuracies: Sequence[float]
    sources: Sequence[str] | None = None
    calls: Sequence[float] | None = None


@dataclass(frozen=True)
class Trained:
    """One run. curve: {step: training accuracy}; validations: by step, 0 before the first; evaluation: {problem:
    accuracy}, {} without one. minutes: of SFT and RL together; gpus: 0 on CPUs; tokens: of all RL steps.
    began: when RL began, seconds since 1970, None where that was not recorded."""

    path: Path
    curve: Mapping[int, float]
    validations: Mapping[int, Validated]
    evaluation: Mapping[str, float]
    minutes: float
    gpus: int
    tokens: float
    began: float | None


def read_run(path: Path, label: str) -> Trained:
    """Read a run whose RL has ended a step. label: of its evaluation. Raises UserError for any other folder."""
    steps = read_steps(path / "rl")
    if not any(CURVE in data for data in steps.values()):
        raise no_run(path) if not path.is_dir() else UserError(f"{path}: its RL has not ended a step.")
    attempts = {stage: read_json_lines(path / stage / "attempts.jsonl") for stage in ("sft", "rl")}
    seconds = sum(float(own.get("seconds", 0.0)) for entries in attempts.values() for own in entries)
    return Trained(
        path=path,
        curve={step: data[CURVE] for step, data in steps.items() if CURVE in data},
        validations={
            own["step"]: Validated(own["problems"], own.get("sources"), own.get("calls"))
            for own in read_json_lines(path / "rl" / FILE)
            if own.get("problems")
        },
        evaluation=read_problems(path / "eval" / label / "trajectories.jsonl"),
        minutes=seconds / 60,
        gpus=_gpus(path / "rl" / "config.yaml"),
        tokens=sum(data.get(TOKENS, 0.0) for data in steps.values()),
        began=_began(path / "rl", attempts["rl"]),
    )


def read_problems(path: Path) -> dict[str, float]:
    """{source/index: share of right samples} of an evaluation; {} where there is none."""
    if not path.is_file():
        return {}
    accuracies: dict[str, list[float]] = defaultdict(list)
    for record in read_step(path, columns=["data_source", "index", "acc"]):
        accuracies[f"{record['data_source']}/{record['index']}"].append(record["acc"])
    return {problem: statistics.fmean(accs) for problem, accs in accuracies.items()}


def _began(stage: Path, attempts: Sequence[Mapping]) -> float | None:
    """When the stage began: of its first attempt, else of its oldest metrics file's step; None without either."""
    starts = [datetime.fromisoformat(own["started"]).timestamp() for own in attempts if own.get("started")]
    files = [path.stat().st_mtime for path in (stage / "metrics").glob("attempt_*.jsonl")]
    return min(starts or files, default=None)


def _gpus(path: Path) -> int:
    try:
        parallel = yaml.load(path.read_text(), Loader=LOADER)["parallel"]
        return parallel["nodes"] * parallel["gpus_per_node"] if parallel["device"] == "cuda" else 0
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return 0
