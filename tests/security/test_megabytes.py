"""A quarter of a megabyte, and every night a megabyte, at everything that reads what a policy wrote: random, or made to
hurt.

Where the time grew with the square, a quarter took many minutes and a megabyte hours, far beyond the limit of a test;
where a reader called itself for every bracket, it raised. Times are measured by
`benchmarks/rewards/untrusted.py`.
"""

import functools

import pytest

from tests.support import untrusted

QUARTER, MEGABYTE = 250_000, 1_000_000


@functools.cache
def texts(size: int) -> list[str]:
    return [make(size) for make in untrusted.TEXTS.values()]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(QUARTER, marks=pytest.mark.timeout(60)),
        pytest.param(MEGABYTE, marks=[pytest.mark.timeout(100), pytest.mark.nightly]),
    ],
)
@pytest.mark.parametrize("reader", untrusted.READERS)
def test_a_megabyte_neither_hangs_nor_raises(reader, size):
    for text in texts(size):
        untrusted.READERS[reader](text)
