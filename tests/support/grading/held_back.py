"""Pairs of answers that were written before the grader judged one of them, by set (SETS).

Each set is {family: [[answer, truth, same], ...]}, made apart from the generators that the grader was developed on
(metamorphic.py, statements.py):

- `held_back`: the look of the answers of college_math, CARP and Minerva: slashes with spaces, `+C`, solved systems,
  families over the integers, implicit equations.
- `held_back_forms`: forms in the issues and suites of published graders (Math-Verify, NeMo-Skills, STACK) and in GSM8K,
  AIME and UGMathBench: sympy's texts and LaTeX, chains of equations, planes, choices, quantities, and cheats of other
  templates.
- `held_back_blind`: hand-made. Truths of Omni-MATH and of the kinds that GSM8K-like sets have (units, money, times,
  words), each with answers that a reader takes for the same and for another, and cheats in words of their own. Its
  author had read docs/grader.md and the templates of statements.py, and no rule.
"""

import json
from pathlib import Path

SETS = ("held_back", "held_back_forms", "held_back_blind")


def pairs(name: str = "held_back") -> list[tuple[str, str, bool, str]]:
    """Return (answer, truth, whether they are the same, family) of each pair of a set."""
    families = json.loads(Path(__file__).with_name(f"{name}.json").read_text())
    return [(answer, truth, same, family) for family, found in families.items() for answer, truth, same in found]
