"""What callers see of the grader: a verdict and what decided, kept from before, and never an exception."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from retool_mcore.rewards import equivalence
from retool_mcore.rewards.equivalence import decide_once, equivalent
from retool_mcore.rewards.math import score


@pytest.fixture(autouse=True)
def _nothing_remembered():
    equivalence._remembered.cache_clear()


@pytest.fixture
def asked(monkeypatch):
    """The pairs that were not answered from memory; the rules say what the answer says."""
    pairs = []

    def decide(answer, truth, rounded):
        pairs.append((answer, truth))
        if answer in ("MemoryError", "RecursionError", "OverflowError"):
            raise {"MemoryError": MemoryError, "RecursionError": RecursionError, "OverflowError": OverflowError}[answer]
        return {"yes": True, "no": False}.get(answer)

    monkeypatch.setattr(equivalence, "decide", decide)
    return pairs


def test_a_verdict_is_remembered(asked):
    told = [decide_once(answer, "a") for answer in ("yes", "no", "yes", "no")]
    assert told == [(True, "front"), (False, "front"), (True, "memo"), (False, "memo")]
    assert asked == [("yes", "a"), ("no", "a")]


def test_what_no_rule_decides_is_different_and_counted_every_time(asked):
    assert [decide_once("perhaps", "a") for _ in range(2)] == [(False, "undecided")] * 2
    assert len(asked) == 1


@pytest.mark.parametrize("error", ["MemoryError", "RecursionError", "OverflowError"])
def test_what_makes_the_rules_raise_is_undecided_and_not_remembered(asked, error):
    assert [decide_once(error, "a") for _ in range(2)] == [(False, "undecided")] * 2
    assert len(asked) == 2
    assert not equivalent(error, "a")


def test_a_long_answer_takes_no_memory(asked):
    assert decide_once("yes", "a" * 400) == decide_once("yes", "a" * 400) == (True, "front")
    assert equivalence._remembered.cache_info().currsize == 0


def test_the_memory_is_bounded():
    assert equivalence._remembered.cache_info().maxsize == 100_000


def test_whether_decimals_are_rounded_is_remembered_apart():
    assert decide_once("1.414214", r"\sqrt{2}") == (False, "front")
    assert decide_once("1.414214", r"\sqrt{2}", rounded=True) == (True, "front")
    assert decide_once("1.414214", r"\sqrt{2}") == (False, "memo")


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\frac{", "5", False),
        ("}{", "5", False),
        ("\ud800", "5", False),
        ("line\nbreak", "5", False),
        ("7" * 1_000_000, "8", False),
        # A gap: no matrix is worked out to a power.
        (r"\begin{pmatrix}2\end{pmatrix}^2", r"\begin{pmatrix}4\end{pmatrix}", False),
    ],
)
def test_answers_of_all_kinds(answer, truth, expected):
    assert equivalent(answer, truth) is expected


def test_a_stack_that_is_nearly_used_up_costs_a_verdict_and_no_more():
    """The caller's own depth, as in a deep call of a reward, leaves the rules too little."""

    def deep(levels: int):
        return deep(levels - 1) if levels else decide_once(r"\sqrt{3+2\sqrt{2}}+z", r"1+\sqrt2+z")

    told = set()
    for levels in range(1000):
        try:
            told.add(deep(levels))
        except RecursionError:  # of `deep` itself, or of what only logs
            break
        equivalence._remembered.cache_clear()
    assert told >= {(True, "front")} and told <= {(True, "front"), (False, "undecided")}


def test_threads_get_their_own_answers():
    def ask(n: int) -> list[bool]:
        return [equivalent(f"{n}.0", str(n + m % 2)) for m in range(20)]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [[True, False] * 10] * 8


def test_a_forked_child_goes_on():
    assert equivalent("5 cm", "50 mm")
    child = os.fork()
    if child == 0:
        os._exit(7 if decide_once("5 cm", "50 mm") == (True, "memo") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_reward_says_what_decided(asked):
    outcomes = [score(rf"\boxed{{{answer}}}", "a") for answer in ("yes", "yes", "no", "perhaps")] + [score("", "a")]
    assert [(outcome["acc"], outcome["graded_by"]) for outcome in outcomes] == [
        (1.0, "front"),
        (1.0, "memo"),
        (0.0, "front"),
        (0.0, "undecided"),
        (0.0, ""),
    ]
