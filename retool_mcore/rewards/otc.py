"""OTC (arXiv 2504.14870): a right answer is worth more the fewer calls it took; a wrong one is worth nothing."""

import math
from collections.abc import Mapping, Sequence

from retool_mcore.errors import UserError
from retool_mcore.rewards.sample import Sample


def tool_reward_ppo(calls: int, max_calls: int) -> float:
    """r_tool of OTC-PPO: cos(m*pi / (2m + c)), m calls of at most c ("Tool Reward"). 1 for no call, 0.5 for m = c.

    Raises ValueError unless m >= 0 and c >= 1.
    """
    _check(calls, max_calls)
    return math.cos(calls * math.pi / (2 * calls + max_calls))


def tool_reward_grpo(calls: int, fewest: int, max_calls: int) -> float:
    """r_tool of OTC-GRPO, m = `calls`, n = `fewest` calls of any right answer to the prompt, c = `max_calls`.

        f(m, n) = 0 if m = n = 0;  m if n = 0;  else 2nm / (m + n)
        r_tool  = 1 if f = n = 0;  cos(m*pi / (2m + c)) if n = 0;  else sin(f*pi / (2n))

    It is 1 at m = n and falls to 0 as m grows. Raises ValueError unless m, n >= 0 and c >= 1.
    """
    _check(calls, max_calls)
    if fewest < 0:
        raise ValueError(f"need fewest >= 0, got {fewest}")
    if fewest == 0:
        return 1.0 if calls == 0 else tool_reward_ppo(calls, max_calls)
    mapped = 2 * fewest * calls / (calls + fewest)
    return math.sin(mapped * math.pi / (2 * fewest))


def otc_ppo(sample: Sample, *, max_calls: int, alpha: float = 1.0) -> float:
    """alpha * r_tool * r_correct, r_correct in {0, 1}: needs no group."""
    return alpha * tool_reward_ppo(len(sample.calls), max_calls) if sample.correct else 0.0


def otc_grpo(
    accs: Sequence[float], calls: Sequence[int], *, fewest: int | None, max_calls: int, alpha: float = 1.0
) -> list[float]:
    """Rewards of one prompt's group: alpha * r_tool * r_correct, given where the whole group is visible.

    accs, calls: verdict and number of calls of each trajectory. fewest: the fewest calls of any right answer to this
    prompt in earlier epochs, None before the first one; the group's own right answers lower it (the running minimum).
    """
    low = fewest_calls(accs, calls, fewest)
    pairs = zip(accs, calls, strict=True)
    return [alpha * tool_reward_grpo(m, low, max_calls) if acc > 0.5 else 0.0 for acc, m in pairs]


def fewest_calls(accs: Sequence[float], calls: Sequence[int], before: int | None) -> int | None:
    """n: the running minimum of the calls of right answers, `before` from earlier epochs; None without any."""
    right = [m for acc, m in zip(accs, calls, strict=True) if acc > 0.5]
    return min([*right, *([] if before is None else [before])], default=None)


def tool_productivity(accs: Sequence[float], calls: Sequence[int]) -> float | None:
    """Right answers per call over all trajectories (the paper's tool productivity); None when nothing was called."""
    total = sum(calls)
    return sum(acc > 0.5 for acc in accs) / total if total else None


def _check(calls: int, max_calls: int) -> None:
    if calls < 0 or max_calls < 1:
        raise ValueError(f"need calls >= 0 and max_calls >= 1, got {calls=}, {max_calls=}")


def check_otc_ppo(config: Mapping, *, max_calls: int, alpha: float = 1.0) -> None:
    """Refuse arguments that the formulas are not made for. Raises UserError."""
    if max_calls < 1:
        raise UserError(f"max_calls={max_calls} of OTC's reward: expected 1 or more calls, as rollout.max_turns.")
    if alpha <= 0:
        raise UserError(f"alpha={alpha:g} of OTC's reward: expected more than 0, what a right answer is worth.")


check_otc_grpo = check_otc_ppo
