"""No regular expression of the package has repeats that share what they may take."""

from pathlib import Path

import pytest
from regexes import patterns, slow

import retool_mcore

# Answers are cut to 1,024 characters before these see them (rewards/grader/text.py::MAX_CHARS).
BOUNDED = "rewards/grader/"


def test_no_pattern_of_the_package_has_nested_or_adjacent_repeats():
    seen = list(patterns(Path(retool_mcore.__file__).parent))
    assert len(seen) > 100
    found = {place: slow(pattern, flags) for place, pattern, flags in seen}
    assert {place: bad for place, bad in found.items() if bad and not place.startswith(BOUNDED)} == {}
    # Beside each other the cost is a power of at most 1,024; inside each other it is an exponent.
    assert {place: bad for place, bad in found.items() if any("nested" in words for words in bad)} == {}


@pytest.mark.parametrize(
    ("pattern", "is_slow"),
    [
        (r"(a+)+$", True),
        (r"(?:a|b+)*x", True),
        (r"\s*\s*x", True),
        (r"[\s$.*]*(?:\\[)\]])?[\s$.*,]*x", True),  # the one that hung the reward
        (r"(?:[a-z]{2,}\.?)+$", True),
        (r"a*+a*", False),
        (r"(?>a+)+", False),
        (r"(?:\w+ )+", False),
        (r"a*b+a*", False),
    ],
)
def test_what_counts_as_slow(pattern, is_slow):
    assert bool(slow(pattern)) is is_slow
