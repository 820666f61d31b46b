"""A megabyte, random or made to hurt, at everything that reads what a policy wrote.

Where the time grew with the square, a megabyte took hours, far beyond the limit of a test; where a reader called itself
for every bracket, it raised. Times are measured by `benchmarks/rewards/untrusted.py`, which holds the cases.
"""

import runpy
from pathlib import Path

import pytest

CASES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "rewards" / "untrusted.py"))
MEGABYTE = 1_000_000


@pytest.mark.timeout(100)
@pytest.mark.parametrize("reader", CASES["READERS"])
def test_a_megabyte_neither_hangs_nor_raises(reader):
    for make in CASES["TEXTS"].values():
        CASES["READERS"][reader](make(MEGABYTE))
