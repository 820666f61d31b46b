"""verl's own checks of its configuration, before an engine starts."""

from hydra.errors import InstantiationException
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from retool_mcore.errors import UserError


def check_config(verl) -> None:
    """verl's own checks of its configuration, which it makes in part when its workers begin. Raises UserError."""
    try:
        validate_config(verl, use_reference_policy=need_reference_policy(verl), use_critic=need_critic(verl))
        omega_conf_to_dataclass(verl.actor_rollout_ref.rollout)
    except (ValueError, TypeError, AssertionError, NotImplementedError, InstantiationException) as error:
        reason = " ".join(str(getattr(error, "__cause__", None) or error).split()).removesuffix(".")
        raise UserError(f"verl refuses its configuration: {reason}.") from error
