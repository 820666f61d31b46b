import pytest

from retool_mcore.errors import UserError
from retool_mcore.rewards.math import score


@pytest.mark.parametrize(
    ("text", "truth", "correct", "pred"),
    [
        (r"... therefore \boxed{42}", "42", True, "42"),
        (r"\boxed{41} wait, \boxed{42}", "42", True, "42"),
        (r"\boxed{42} wait, \boxed{41}", "42", False, "41"),
        (r"\boxed{\frac{1}{2}}", "0.5", True, r"\frac{1}{2}"),
        (r"\boxed{}", "42", False, ""),
        ("the answer is 42", "42", False, ""),
        ("", "42", False, ""),
    ],
)
def test_score(text, truth, correct, pred):
    found = score(text, truth)
    assert (found["score"], found["acc"], found["pred"]) == (1.0 if correct else -1.0, float(correct), pred)
    assert found["graded_by"] in (("front", "memo") if pred else ("",))


@pytest.mark.parametrize("truth", ["", "  ", None, 42])
def test_an_unusable_ground_truth_is_refused(truth):
    with pytest.raises(UserError, match="ground_truth"):
        score(r"\boxed{42}", truth)
