"""Rewards that a user might write."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch

GOOD = {
    "a bool": True,
    "an int": 1,
    "a float32": np.float32(1),
    "an int64": np.int64(1),
    "a bool of NumPy": np.bool_(True),
    "an array without dimensions": np.array(1.0),
    "an array of one": np.array([1.0]),
    "a tensor": torch.tensor(1.0),
    "a tensor with a gradient": torch.ones((), requires_grad=True),
    "a tensor of half precision": torch.tensor([1], dtype=torch.bfloat16),
    "a Decimal": Decimal("1.0"),
    "a Fraction": Fraction(1),
}
BAD = {
    "not a number": math.nan,
    "infinity": math.inf,
    "NumPy's": np.float32(-np.inf),
    "a tensor's": torch.tensor(math.nan),
    "None": None,
    "a text": "1.0",
    "bytes": b"1",
    "an array of two": np.array([1.0, 2.0]),
    "a list": [1.0],
    "a dict": {"score": 1.0},
    "a tuple": (1.0, {}),
    "complex": 1j,
    "too large": 10**400,
}


def good(sample, *, case: str):
    return GOOD[case]


def bad(sample, *, case: str):
    return BAD[case]


async def coroutine(sample):
    return 1.0


def sometimes(sample):
    return 1.0 if sample.correct else math.nan


def raises(sample):
    return 1.0 / len(sample.ground_truth.split("x")[1:])


def sees_row(sample):
    """1 where all that the sample says of its row is as the tests have it."""
    row = (sample.question, sample.extra, sample.index, sample.source)
    return float(row == ("What is 6 * 7?", {"level": 3, "tests": ["a"]}, 17, "x"))


def plan(sample, *, worth=1.0):
    """A reward that compares with no answer."""
    return worth


plan.needs_answer = False


def partial(sample):
    return 1.0 if sample.correct else 0.25


partial.needs_answer = False


def second(sample):
    """Half a point for row 1 of the data, else a quarter."""
    return 0.5 if (sample.index, sample.question, sample.source) == (1, "1 + 1?", "sums") else 0.25


BROKEN = set()


def breakable(sample):
    """Raises for the rows of BROKEN."""
    if sample.index in BROKEN:
        raise KeyError(sample.index)
    return 1.0
