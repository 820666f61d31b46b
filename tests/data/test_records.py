import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.records import MalformedRow, field, normalise_question, text_field


def test_text_field_unifies_line_ends():
    assert text_field("a\r\nb\rc\n", "x") == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("value", "reason"), [(None, "content is null"), (3, "content is int"), ([], "content is list")]
)
def test_text_field_names_field_and_type(value, reason):
    with pytest.raises(MalformedRow, match=reason):
        text_field(value, "content")


def test_field_names_what_is_missing():
    assert field({"a": None}, "a", "row") is None
    with pytest.raises(MalformedRow, match="row has no field 'b'"):
        field({"a": 1}, "b", "row")
    with pytest.raises(MalformedRow, match="message 2 is null, expected an object"):
        field(None, "b", "message 2")
    with pytest.raises(MalformedRow, match="message 2 is str"):
        field("text", "b", "message 2")


def test_normalise_question_merges_spelling_and_keeps_mathematics_apart():
    assert normalise_question("Find\r\n  X. ") == normalise_question("find x.")
    assert normalise_question("cafe\u0301") == normalise_question("caf\u00e9")
    assert normalise_question("x² + 1") != normalise_question("x2 + 1")
    assert normalise_question("x + 1") != normalise_question("x - 1")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text())
def test_normalise_question_does_not_see_outer_or_repeated_space(text):
    once = normalise_question(text)
    assert normalise_question(f"\n {text}\t") == once
    assert normalise_question(text.replace(" ", "  \n")) == once
