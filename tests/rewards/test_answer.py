import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.boxed import boxes, last_boxed
from retool_mcore.errors import UserError
from retool_mcore.rewards.answer import MOST_CHARACTERS, extract


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


def test_a_megabyte_of_boxes_takes_one_pass():
    assert last_boxed(r"\boxed{" * 150_000) is None
    assert last_boxed(r"\boxed{" * 50_000 + "7" + "}" * 50_000) == "7"
    assert extract(r"\boxed{7}" * 50_000) == "7"
    assert extract(r"\boxed{7} wait " * 50_000) == "7"
    assert extract(r"a \boxed{7} b" * 50_000) == "7"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{42}, that is \boxed{42.}", "42."),
        (r"\boxed{41} wait, \boxed{42}", "42"),
        ("First guess \\boxed{41}.\n\nThe answer is \\boxed{42}.", "42"),
        # Side by side: a list.
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$\boxed{(2, 2)} \quad \text{and} \quad \boxed{(6, 2)}$", "(2, 2), (6, 2)"),
        ("\\boxed{1}\n\n\\boxed{2}\n\n\\boxed{3}", "1, 2, 3"),
        # Several answers are none.
        (r"\boxed{1} is one way to see it, \boxed{2} another", None),
        (r"The answer is \boxed{3} or 4.", None),
        (r"\(\boxed{3}\) or maybe $4$", None),
        (r"\boxed{3} or so it seems", "3"),
        ("".join(rf"\boxed{{{n}}}" for n in range(4)), "0, 1, 2, 3"),
        (r"\boxed{6", None),
        ("no box", None),
    ],
)
def test_boxed_policy(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>5?</think><answer>42</answer>", "42"),
        ("<answer>\n 42 \n</answer>", "42"),
        (r"<answer>It is \boxed{42}.</answer>", "42"),
        ("<answer>42</answer> again: <answer>42.0</answer>", None),
        ("<answer>42</answer> again: <answer>$42$</answer>", "$42$"),
        ("<answer>1</answer><answer>2</answer>", None),
        ("<answer>42", None),
        (r"\boxed{42}", None),
    ],
)
def test_answer_tag_policy(text, answer):
    assert extract(text, "answer_tag") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("We add.\n42\n", "42"),
        ("We add.\nThe final answer is: $42$", "$42$"),
        ("**Answer:** 42", "42"),
        ("#### 42", "42"),
        (r"So it is \boxed{42}.", "42"),
        (r"\boxed{1} is one, \boxed{2} another", None),
        ("\n \n", None),
    ],
)
def test_final_line_policy(text, answer):
    assert extract(text, "final_line") == answer


def test_an_unknown_policy_is_refused_with_the_valid_ones():
    with pytest.raises(UserError, match="boxed, answer_tag, final_line, got 'last'"):
        extract("5", "last")


def test_boxes_tell_where_they_stand():
    text = r"a \boxed{1} b \fbox{\boxed{2}}"
    assert [text[start:end] for start, end, _ in boxes(text)] == [r"\boxed{1}", r"\boxed{2}"]


def test_of_a_text_that_no_rollout_ends_the_end_counts():
    assert extract("\\boxed{1}" + " " * (MOST_CHARACTERS - 9)) == "1"
    assert extract("\\boxed{1}" + " " * MOST_CHARACTERS) is None
