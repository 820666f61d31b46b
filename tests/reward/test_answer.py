import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.reward.answer import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {8}", "8"),
        ("\\boxed\n{ 8 }", "8"),
        (r"first \boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{1} and \fbox{2}", "2"),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\\\boxed{3}", "3"),
        (r"\boxed{4\\}", "4\\\\"),
        (r"\boxed{}", ""),
        (r"\boxed{5} and \boxed{6", "5"),
        ("a stray } and { before \\boxed{9}", "9"),
        (r"\boxed{6", None),
        ("the answer is 42", None),
        (r"\boxed 5", None),
        (r"\boxedminus{5}", None),
        ("", None),
    ],
)
def test_last_boxed(text, answer):
    assert last_boxed(text) == answer


balanced = st.recursive(
    st.text("ab0 ", max_size=4), lambda inner: st.lists(inner, max_size=3).map(lambda p: f"{{{''.join(p)}}}")
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(before=st.text("ab {}\\", max_size=20), content=balanced, after=st.text("ab {", max_size=10))
def test_any_balanced_content_comes_back_whole(before, content, after):
    # A space ends whatever escape `before` may end with.
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content.strip()


def test_a_megabyte_of_open_boxes_takes_one_pass():
    assert last_boxed(r"\boxed{" * 150_000) is None
    assert last_boxed(r"\boxed{" * 50_000 + "7" + "}" * 50_000) == "7"
