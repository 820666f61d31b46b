"""Validation inside a run: accuracy on the problems that are held back, by which a checkpoint is chosen."""

import time

from retool_mcore.data.prompt_stream import Prompts
from retool_mcore.metrics import validation
from retool_mcore.recipes.sandbox_errors import SandboxErrors
from retool_mcore.rollout.rollouts import Rollouts
from retool_mcore.rollout.samples import Group
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings


def validate(cfg: Settings, rollouts: Rollouts, run: Run, held_back: Prompts, step: int) -> dict[str, float]:
    """The metrics val/... of the policy after `step`; nothing else may be in flight.

    Its requests are all of step 0, whose seeds training, which begins at step 1, never uses; validations share them
    (common random numbers): where two policies agree they write the same, so less of their difference is noise. Raises
    UserError when the sandbox loses more trajectories than it may.
    """
    clock = time.monotonic()
    options = {"n": cfg.validation_n, "sampling": dict(cfg.validation_sampling), "keep": None}
    count = len(held_back.rows)
    for number in range(count):
        rollouts.ask(Group(f"val-{number:06d}", held_back.row(number), 0), **options)
    groups: list[Group] = []
    while len(groups) < count:
        groups += rollouts.ended(wait_s=None)
    groups.sort(key=lambda group: group.uid)
    _check_sandbox(groups, cfg.sandbox_errors, step)
    means = [sum(float(sample.outcome["acc"]) for sample in group.samples) / cfg.validation_n for group in groups]
    worse = validation.worse_in_a_row(validation.record(run.stage_dir, step, means))
    if cfg.stop_after_worse is not None and worse >= cfg.stop_after_worse and step < run.total:
        # With a checkpoint: this step's, else that of one step more, since the engines have the device memory by now.
        run.total = step + (cfg.save_every > 0 and run.saved_step != step)
        reason = f"{worse} validations in a row were not better by more than a standard error"
        print(f"RL ends with step {run.total}: {reason} (train.stop_after_worse)", flush=True)
    run.validating_s += (seconds := time.monotonic() - clock)
    return validation.validation_metrics([str(group.row["data_source"]) for group in groups], means) | {
        "val/failed": sum(cfg.validation_n - len(group.samples) for group in groups),
        "val/worse_in_a_row": worse,
        "val/seconds": seconds,
        "val/share": run.validating_s / (time.monotonic() - run.began),
    }


def _check_sandbox(groups: list[Group], limit: float, step: int) -> None:
    errors = SandboxErrors(limit, n=1)
    samples = [sample for group in groups for sample in group.samples]
    if errors.add([sample.finish for sample in samples], lambda row: samples[row].notes["calls"]):
        print(f"validation at step {step}: {errors.lost} of {errors.seen} lost to the sandbox ({errors.last})")
    errors.check(step, prompts=0)
