"""What each filter drops, and why."""

import pytest
from recipe_samples import sample, turn

from retool_mcore.errors import UserError
from retool_mcore.recipes.group_filters import Outcome, drops_groups, group_reason
from retool_mcore.recipes.sample_filters import drop_reason, faked_output, overlong_wrong, repetition, void_turn


@pytest.mark.parametrize("finish", ["length", "overflow", "turn_length"])
def test_overlong_is_dropped_only_when_wrong(finish):
    assert overlong_wrong(sample(acc=0.0, finish=finish))
    assert not overlong_wrong(sample(acc=1.0, finish=finish))
    assert not overlong_wrong(sample(acc=0.0, finish="answer"))


def test_repetition_is_a_share_of_n_grams_of_the_policys_own_tokens():
    # 2-grams of 1 1 1 1 1 1 are five, one distinct: 4/5. Two turns of three equal tokens: 4 n-grams, 3 repeated.
    assert repetition(sample(ids=[1] * 6), n=2, limit=0.79)
    assert not repetition(sample(ids=[1] * 6), n=2, limit=0.8)
    assert repetition(sample(ids=[1] * 3 + [7] * 90 + [1] * 3, spans=[(0, 3), (93, 96)]), n=2, limit=0.74)
    assert not repetition(sample(ids=[1] * 3 + [7] * 90 + [1] * 3, spans=[(0, 3), (93, 96)]), n=2, limit=0.75)
    assert not repetition(sample(ids=range(100)), n=2, limit=0.0)
    assert not repetition(sample(ids=[1]), n=2, limit=0.0)


@pytest.mark.parametrize(
    ("turns", "calls", "faked"),
    [
        ([turn(1), turn(boxed=True)], ["success"], False),
        ([turn(boxed=True)], [], False),
        ([turn(1), turn(boxed=True, fakes=1)], ["success"], True),  # two outputs, one execution
        ([turn(1, fakes=1, boxed=True)], [], True),  # its program was never run
        ([turn(1), turn(1, boxed=True)], ["success"], True),
        ([turn(), turn(boxed=True)], ["malformed"], False),  # answered with an error: neither program nor execution
    ],
)
def test_a_right_answer_with_a_faked_output_is_dropped(turns, calls, faked):
    assert faked_output(sample(acc=1.0, turns=turns, calls=calls)) is faked
    assert not faked_output(sample(acc=0.0, turns=turns, calls=calls))


@pytest.mark.parametrize(
    ("turns", "void"),
    [
        ([turn(1), turn(boxed=True)], False),
        ([turn(1), turn()], True),
        ([turn(), turn(1), turn(boxed=True)], True),
        ([turn()], True),
    ],
)
def test_void_turns(turns, void):
    assert void_turn(sample(turns=turns)) is void


def test_the_first_reason_in_the_recipes_order_counts():
    bad = sample(acc=0.0, finish="length", ids=[1] * 64, turns=[turn()])
    parameters = {"repetition": {"n": 16, "limit": 0.2}}
    assert drop_reason(bad, ["overlong_wrong", "repetition", "void_turn"], parameters) == "overlong_wrong"
    assert drop_reason(bad, ["void_turn", "repetition"], parameters) == "void_turn"
    assert drop_reason(bad, ["faked_output"], parameters) == drop_reason(bad, [], {}) == ""
    with pytest.raises(UserError, match="no filter is called 'viod_turn'"):
        drop_reason(bad, ["viod_turn"], {})


def group(*accs, drop=""):
    return [Outcome(acc, drop) for acc in accs]


@pytest.mark.parametrize(
    ("outcomes", "filters", "reason"),
    [
        (group(1, 1, 1), {}, ""),
        (group(1, 1, 1), {"all_equal": True}, "all_equal"),
        (group(1, 0, 1), {"all_equal": True}, ""),
        (group(*[1] * 16, *[0] * 4), {"accuracy": [0.05, 0.8]}, "accuracy"),
        (group(*[1] * 15, *[0] * 5), {"accuracy": [0.05, 0.8]}, ""),
        (group(1, *[0] * 19), {"accuracy": [0.05, 0.8]}, "accuracy"),
        (group(1, 0, drop="void_turn"), {"all_equal": True}, "nothing_left"),
        ([Outcome(1.0, "void_turn"), Outcome(0.0)], {}, ""),
    ],
)
def test_groups(outcomes, filters, reason):
    assert group_reason(outcomes, **filters) == reason


def test_whether_a_recipe_drops_groups_at_all():
    off = {"all_equal": False, "accuracy": None, "samples": []}
    assert not drops_groups(off)
    for on in ({"all_equal": True}, {"accuracy": [0, 1]}, {"samples": ["void_turn"]}):
        assert drops_groups(off | on)
