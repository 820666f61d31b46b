"""Values that cross from one process to another, with their types and without a way to build any other."""

import datetime
import decimal
import fractions
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_mcore.official.inside.plain import MOST_DEPTH, decode, encode

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
HASHABLE = SCALARS | st.dates() | st.fractions() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner) | st.dictionaries(HASHABLE, inner) | st.tuples(inner) | st.sets(HASHABLE),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_comes_back_with_its_types(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value and type(found) is type(value)
    assert repr(found) == repr(value) or isinstance(value, set | dict | tuple | list)


@pytest.mark.parametrize(
    "value",
    [
        {1: "a", "1": "b", (1, 2): [3]},
        datetime.datetime(2026, 11, 28, 10, 30),
        datetime.time(7, 41),
        decimal.Decimal("1.50"),
        fractions.Fraction(2, 6),
        complex(1, -2),
        range(1, 10, 3),
        frozenset({1}),
        10**100,
    ],
)
def test_types_that_graders_use(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert (found, type(found)) == (value, type(value))


class Equal:
    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize("value", [Equal(), [Equal()], lambda: 1, print, type("S", (list,), {})([1]), object])
def test_no_object_of_another_type_is_carried(value):
    with pytest.raises(TypeError, match="cannot be carried"):
        encode(value)


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(ValueError, match=f"deeper than {MOST_DEPTH}"):
        encode(value)


@pytest.mark.parametrize(
    "text", ['{"eval": "1"}', '{"a": 1, "b": 2}', "{}", '{"dict": 3}', '{"list": []}', '{"tuple": {}}']
)
def test_what_encode_never_writes_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        decode(json.loads(text))
