"""Rewards that look at the outcome alone: ReTool, ToRL, ZeroTIR, SkyRL, and an environment's own."""

from collections.abc import Mapping

from retool_mcore.errors import UserError
from retool_mcore.rewards.sample import Sample


def retool(sample: Sample) -> float:
    """+1 when the final answer is equivalent to the ground truth, else -1 (ReTool, arXiv 2504.11536, "Reward Design").

    The paper leaves executability out on purpose.
    """
    return 1.0 if sample.correct else -1.0


def torl(sample: Sample, *, executability: float = 0.0) -> float:
    """+1 or -1 for the answer; `executability` is added when no execution passed (ToRL, arXiv 2503.23383).

    The paper tries -0.5, finds that it does not help, and trains with 0. A trajectory without any call has no failed
    execution and is not punished.
    """
    failed = bool(sample.calls) and not any(call.status == "success" for call in sample.calls)
    return retool(sample) + (executability if failed else 0.0)


def zerotir(sample: Sample) -> float:
    """1 when the final answer is right, else 0 (ZeroTIR, arXiv 2505.07773; SimpleTIR, arXiv 2509.02479); or, in a
    repository, when its tests pass (SkyRL v0)."""
    return 1.0 if sample.correct else 0.0


def environment(sample: Sample) -> float:
    """The undiscounted return: the sum of the rewards that an environment gave for its calls, which their `value`
    holds (environments/gym.py)."""
    return sum(float(call.value) for call in sample.calls if call.code is None and call.value is not None)


environment.needs_answer = False  # type: ignore[attr-defined]


def check_environment(config: Mapping, **args) -> None:
    """Refuse a recipe whose trajectories act in no environment: the return of all would be 0. Raises UserError."""
    if config["recipe"]["answer"] != "environment":
        raise UserError(
            "recipe.reward.name=environment adds up the rewards of an environment, which no trajectory has with "
            f"recipe.answer={config['recipe']['answer']}: set recipe.answer=environment, or take another reward."
        )
