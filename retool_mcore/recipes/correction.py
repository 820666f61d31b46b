"""The correction where the rollout engine's probabilities are not the trainer's: verl's presets by name."""

from collections.abc import Mapping

from retool_mcore.errors import UserError

REJECTIONS = (
    *(f"{level}_k{number}" for level in ("token", "seq_sum", "seq_mean") for number in (1, 2, 3)),
    *("seq_max_k2", "seq_max_k3"),
)


def check_correction(correction: Mapping, recipe: Mapping, *, log_probs: bool) -> None:
    """Refuse what verl would refuse at the first step, or run as something else. Raises UserError with one sentence.

    log_probs: whether the rollout engine gives the log-probabilities of its tokens.
    """
    name, modes = f"correction={correction['name']}", str(correction["rollout_rs"] or "").split(",")
    corrects, bypasses = correction["rollout_is"] or modes != [""], correction["log_probs_every"] > 1
    if corrects and bypasses:
        raise UserError(f"{name} needs the trainer's own log-probabilities: set correction.log_probs_every=1.")
    if not corrects and not bypasses:
        return
    if not log_probs:
        raise UserError(
            f"{name} needs the rollout engine's log-probabilities: leave "
            "verl.actor_rollout_ref.rollout.calculate_log_probs at true, or take correction=disabled."
        )
    threshold = correction["rollout_is_threshold"]
    if not _are_bounds(threshold, most=2):
        raise UserError(f"correction.rollout_is_threshold={threshold}: expected 2.0 or 0.5_5.0.")
    if modes == [""]:
        return
    if unknown := [mode for mode in modes if mode not in REJECTIONS]:
        raise UserError(f"correction.rollout_rs: {unknown[0]!r} is not known; choose from {', '.join(REJECTIONS)}.")
    specs = str(correction["rollout_rs_threshold"]).split(",")
    specs = specs * len(modes) if len(specs) == 1 else specs
    fit = len(specs) == len(modes) and all(
        _are_bounds(spec, most=2 if mode.endswith("k1") else 1) for spec, mode in zip(specs, modes, strict=True)
    )
    if not fit:
        raise UserError(
            f"correction.rollout_rs_threshold={correction['rollout_rs_threshold']} does not fit "
            f"{correction['rollout_rs']}: expected 0.5_2.0 for k1, one bound for k2 and k3."
        )
    if recipe["loss_aggregation"] != "token-mean":
        raise UserError(
            f"{name} rejects trajectories, which needs recipe.loss_aggregation=token-mean, not "
            f"{recipe['loss_aggregation']}: the mean over sequences divides by the rejected ones too."
        )
    if recipe["observation_weight"] > 0:
        raise UserError(
            f"{name} rejects tokens, which recipe.observation_weight would take for observations: set it to 0."
        )


def _are_bounds(spec: object, most: int) -> bool:
    try:
        bounds = [float(part) for part in str(spec).split("_")]
    except ValueError:
        return False
    return len(bounds) <= most and 0 < bounds[0] <= bounds[-1]
