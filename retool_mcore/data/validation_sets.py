"""The samples of a validation inside the run: which problems, how often, and how."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HELD_BACK, EVALUATION = "held_back", "evaluation"


@dataclass(frozen=True)
class ValidationSet:
    """The problems of `files` (RL parquets), each sampled `samples` times. `key`: the configuration's for the files."""

    name: str
    key: str
    files: tuple[Path, ...]
    samples: int
    temperature: float
    top_p: float


def validation_sets(config: Mapping) -> list[ValidationSet]:
    """The sets of train.eval_sets in RL's configuration: held_back first, by which a checkpoint is chosen.

    It is sampled as the training is; the evaluation set as train.evaluation says. A configuration of before there were
    sets has the first alone.
    """
    train, rollout, data = config["train"], config["rollout"], config["data"]
    usual = (train["eval_samples"], rollout["temperature"], rollout["top_p"])
    sets = [ValidationSet(HELD_BACK, "data.held_back_files", _files(data["held_back_files"]), *usual)]
    if EVALUATION in (train.get("eval_sets") or ()):
        own = train["evaluation"]
        sampling = (own["samples"], own["temperature"], own["top_p"])
        sets.append(ValidationSet(EVALUATION, "data.validation_files", _files(data["validation_files"]), *sampling))
    return sets


def _files(paths) -> tuple[Path, ...]:
    return tuple(Path(path) for path in ([paths] if isinstance(paths, str) else paths))
