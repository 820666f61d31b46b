"""Which samples a recipe leaves out of the loss, and why: pure functions of one trajectory.

A sample that is left out still counts in its group's baseline: only its own tokens teach nothing.
"""

from collections.abc import Callable, Mapping, Sequence

from retool_mcore.errors import UserError
from retool_mcore.metrics.repetition import repeated_share
from retool_mcore.rewards.sample import Sample

# The response reached a limit before the policy ended it.
OVERLONG = ("length", "overflow", "turn_length")


def overlong_wrong(sample: Sample) -> bool:
    """Wrong, and cut off at a limit of tokens (ZeroTIR, arXiv 2505.07773)."""
    return not sample.correct and sample.finish in OVERLONG


def repetition(sample: Sample, *, n: int, limit: float) -> bool:
    """More than `limit` of the policy's n-grams of tokens are repetitions (ZeroTIR: 0.2; its n is not confirmed).

    n must be a power of two (metrics/repetition.py).
    """
    share = repeated_share(sample.ids, sample.policy_spans, n)
    return share is not None and share > limit


def faked_output(sample: Sample) -> bool:
    """Right, but programs, outputs and executions are not equally many (ZeroTIR's shortcut): an output was made up.

    Outputs are the interpreter's and those that the policy opens with the interpreter's own tag.
    """
    programs = sum(turn.programs for turn in sample.turns)
    executions = sum(not call.malformed for call in sample.calls)
    outputs = executions + sum(len(turn.fakes) for turn in sample.turns)
    return sample.correct and not programs == outputs == executions


def void_turn(sample: Sample) -> bool:
    """Some turn holds neither a complete program nor a boxed answer (SimpleTIR, arXiv 2509.02479)."""
    return any(turn.programs == 0 and not turn.boxed for turn in sample.turns)


FILTERS: dict[str, Callable[..., bool]] = {
    filter_.__name__: filter_ for filter_ in (overlong_wrong, repetition, faked_output, void_turn)
}


def drop_reason(sample: Sample, names: Sequence[str], parameters: Mapping[str, Mapping]) -> str:
    """The first of the filters `names` that leaves `sample` out, or "" when it stays.

    parameters: keyword arguments by filter. Raises UserError for a name that is no filter.
    """
    for name in names:
        if name not in FILTERS:
            raise UserError(f"recipe.filters.samples: no filter is called {name!r}; choose from {', '.join(FILTERS)}.")
        if FILTERS[name](sample, **parameters.get(name, {})):
            return name
    return ""
