"""math-verify as the leaf comparison of `structure`. Runs in the worker processes only: sympy may hang or crash."""

import logging
import re

from retool_mcore.rewards.grader import numeric, structure
from retool_mcore.rewards.grader.scalar import parsed
from retool_mcore.rewards.grader.text import CLOSE_TEXT, OPEN_TEXT

_WORD = re.compile(rf"{OPEN_TEXT}([^{CLOSE_TEXT}]*){CLOSE_TEXT}")
_TEXT = r"\\text{\1}"


def leaf(answer: str, truth: str) -> bool:
    """math-verify's verdict on two normal forms; False for what it cannot parse, or where numbers prove it wrong.

    `structure` asks only about pairs that say the same beside their values.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    left, right = parsed(answer), parsed(truth)
    readable = left is not None and right is not None
    proof = numeric.compare(left.tree, right.tree, left.symbols | right.symbols) if readable else None
    if proof is False and not left.doubtful and not right.doubtful:
        return False
    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    # The truth goes in first: the comparison is not symmetric.
    latex = (rf"\boxed{{{_WORD.sub(_TEXT, text)}}}" for text in (truth, answer))
    gold, guess = (parse(text, extraction_config=targets, parsing_timeout=None) for text in latex)
    return bool(verify(gold, guess, timeout_seconds=None))


def compare(answer: str, truth: str, rounded: bool = False) -> bool:
    """The whole comparison, with math-verify for what the forms in front leave open."""
    return bool(structure.decide(answer, truth, leaf, rounded))


def warm_up() -> None:
    """Load what sympy loads late and build the LaTeX grammar, so that few comparisons pay for it. Two seconds."""
    logging.disable(logging.CRITICAL)
    for answer, truth in (
        (r"\sin^2 x", r"1-\cos^2 x"),
        (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R}\setminus\{0\}"),
        (r"\begin{pmatrix}1\end{pmatrix}+\begin{pmatrix}1\end{pmatrix}", r"\begin{pmatrix}2\end{pmatrix}"),
        ("x^2=4", "2x^2=8+y"),
    ):
        leaf(answer, truth)
