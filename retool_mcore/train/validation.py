"""Validation inside a run: accuracy on the problems that are held back, by which a checkpoint is chosen, and figures of
the evaluation set."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.data.validation_sets import EVALUATION
from retool_mcore.metrics import validation
from retool_mcore.recipes.sandbox_errors import SandboxErrors
from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.rollout.rollouts import Rollouts
from retool_mcore.rollout.samples import Group
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings


class Validation(NamedTuple):
    """The problems that a run validates on; evaluation: of the evaluation set, None where it is left out."""

    held_back: Prompts
    evaluation: Prompts | None = None


def validate(cfg: Settings, rollouts: Rollouts, run: Run, problems: Validation, step: int) -> dict[str, float]:
    """The metrics val/... of the policy after `step`; nothing else may be in flight.

    Its requests are all of step 0, whose seeds training, which begins at step 1, never uses; validations share them
    (common random numbers): where two policies agree they write the same, so less of their difference is noise. Raises
    UserError when the sandbox loses more trajectories than it may.
    """
    clock = time.monotonic()
    groups = _sampled(cfg, rollouts, problems.held_back, step, cfg.validation_n, cfg.validation_sampling)
    means = [sum(float(sample.outcome["acc"]) for sample in group.samples) / cfg.validation_n for group in groups]
    sources = [str(group.row["data_source"]) for group in groups]
    calls = [sum(len(sample.notes["calls"]) for sample in group.samples) / cfg.validation_n for group in groups]
    worse = validation.worse_in_a_row(validation.record(run.stage_dir, step, means, sources, calls))
    if cfg.stop_after_worse is not None and worse >= cfg.stop_after_worse and step < run.total:
        # With a checkpoint: this step's, else that of one step more, since the engines have the device memory by now.
        run.total = step + (cfg.save_every > 0 and run.saved_step != step)
        reason = f"{worse} validations in a row were not better by more than a standard error"
        print(f"RL ends with step {run.total}: {reason} (train.stop_after_worse)", flush=True)
    metrics = validation.validation_metrics(sources, means)
    metrics["val/failed"] = sum(cfg.validation_n - len(group.samples) for group in groups)
    if problems.evaluation is not None and cfg.evaluation is not None:
        metrics |= _evaluation_metrics(cfg, rollouts, problems.evaluation, step, cfg.evaluation)
    run.validating_s += (seconds := time.monotonic() - clock)
    return metrics | {
        "val/worse_in_a_row": worse,
        "val/seconds": seconds,
        "val/share": run.validating_s / (time.monotonic() - run.began),
    }


def _sampled(
    cfg: Settings, rollouts: Rollouts, problems: Prompts, step: int, n: int, sampling: Mapping, name: str = "val"
) -> list[Group]:
    """The groups of all problems, in their order."""
    count = len(problems.rows)
    for number in range(count):
        group = Group(f"{name}-{number:06d}", problems.row(number), 0)
        rollouts.ask(group, n=n, sampling=dict(sampling), keep=None)
    groups: list[Group] = []
    while len(groups) < count:
        groups += rollouts.ended(wait_s=None)
    groups.sort(key=lambda group: group.uid)
    _check_sandbox(groups, cfg.sandbox_errors, step)
    return groups


def _evaluation_metrics(cfg: Settings, rollouts: Rollouts, problems: Prompts, step: int, own: Mapping) -> dict:
    """The metrics val/evaluation/..., which choose no checkpoint."""
    n, sampling = own["samples"], {**cfg.validation_sampling, **own["sampling"]}
    groups = _sampled(cfg, rollouts, problems, step, n, sampling, name=f"val-{EVALUATION}")
    samples = [sample for group in groups for sample in group.samples]
    return validation.set_metrics(
        EVALUATION,
        [sample.group for sample in samples],
        [float(sample.outcome["acc"]) for sample in samples],
        [sample.outcome["pred"] for sample in samples],
        {(str(group.row["data_source"]), group.uid): n for group in groups},
        same=equivalent,
    )


def _check_sandbox(groups: list[Group], limit: float, step: int) -> None:
    errors = SandboxErrors(limit, n=1)
    samples = [sample for group in groups for sample in group.samples]
    if errors.add([sample.finish for sample in samples], lambda row: samples[row].notes["calls"]):
        print(f"validation at step {step}: {errors.lost} of {errors.seen} lost to the sandbox ({errors.last})")
    errors.check(step, prompts=0)
