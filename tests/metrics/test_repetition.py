import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.metrics.repetition import repeated_share


def counted(ids, spans, n):
    grams = [tuple(ids[i : i + n]) for start, end in spans for i in range(start, end - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 3), max_size=60),
    cuts=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    n=st.sampled_from([1, 2, 4, 8]),
)
def test_it_counts_what_a_set_counts(ids, cuts, n):
    first, second = sorted(min(cut, len(ids)) for cut in cuts)
    spans = [(0, first), (second, len(ids))]
    expected = counted(ids, spans, n)
    found = repeated_share(ids, spans, n)
    assert found == expected if expected is None else found == pytest.approx(expected)


def test_a_loop_is_seen_and_a_border_is_not_crossed():
    assert repeated_share(list(range(50)) * 20, [(0, 1000)]) == pytest.approx(1 - 50 / 985)
    assert repeated_share(list(range(16)) * 2, [(0, 16), (16, 32)]) == 1 / 2
    assert repeated_share(list(range(32)), [(0, 15), (15, 30)]) is None
    with pytest.raises(ValueError, match="power of two"):
        repeated_share([1, 2, 3], [(0, 3)], n=3)
