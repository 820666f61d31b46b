"""ARTIST (arXiv 2505.01441): answer, format and tool success add up, for maths.

How the paper splits the format part is not confirmed, so the weights are parameters of the recipe.
"""

from retool_mcore.rewards.sample import Sample


def tool_success(sample: Sample) -> float:
    """Successful calls / all calls, in [0, 1]; 0 without a call."""
    passed = [call.status == "success" for call in sample.calls]
    return sum(passed) / len(passed) if passed else 0.0


def artist(sample: Sample, *, answer: float = 2.0, boxed_format: float = 0.25, block_format: float = 0.25) -> float:
    """The maths reward: `answer` when right else 0, plus format up to 0.5, plus tool success up to 1.

    The format part is `boxed_format` when the last turn's prose holds a boxed answer, and `block_format` when no call
    is malformed and no output is the policy's own.
    """
    ends_boxed = bool(sample.turns) and sample.turns[-1].boxed
    blocks_whole = not any(call.malformed for call in sample.calls) and not any(turn.fakes for turn in sample.turns)
    return answer * sample.correct + boxed_format * ends_boxed + block_format * blocks_whole + tool_success(sample)
