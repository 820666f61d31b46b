import pytest

from retool_mcore.rewards.shaping import soft_overlong


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (0, 0.0),
        (16384, 0.0),
        (16385, -1 / 4096),
        (17408, -0.25),
        (18432, -0.5),
        (20479, -4095 / 4096),
        (20480, -1.0),
        (20481, -1.0),
        (10**6, -1.0),
    ],
)
def test_soft_overlong_with_the_papers_lengths(length, penalty):
    assert soft_overlong(length, max_length=20480, cache=4096) == penalty


@pytest.mark.parametrize(("length", "max_length", "cache"), [(-1, 10, 5), (1, 10, 0), (1, 10, 11)])
def test_soft_overlong_refuses_impossible_lengths(length, max_length, cache):
    with pytest.raises(ValueError, match="need 0 < cache"):
        soft_overlong(length, max_length, cache)
