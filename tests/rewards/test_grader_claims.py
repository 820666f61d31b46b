"""Nothing that says something else than the truth is accepted, and no input makes the grader raise or go on and on."""

import tracemalloc

import pytest

from retool_mcore.rewards.grader.structure import decide
from tests.support.grading import metamorphic, statements
from tests.support.grading.hostile_inputs import hostile

CHEATS = statements.cheats()


def claims_more(answer: str, truth: str) -> bool:
    """Accepted."""
    return decide(answer, truth) is True


def test_there_are_enough_attempts():
    assert len(CHEATS) >= 700


def test_no_attempt_succeeds():
    assert [pair for pair in CHEATS if claims_more(*pair)] == []


def test_every_true_pair_survives_twenty_ways_and_falls_in_twenty():
    kept = [pair for pair in metamorphic.pairs(11, 4000) if pair.rule == "wrapped"]
    assert len(statements.WRAPPED) >= 20 and all(len(templates) >= 20 for templates in statements.CHANGED.values())
    assert [pair for pair in kept if decide(pair.answer, pair.truth) is not True] == []


@pytest.mark.parametrize(
    ("answer", "truth"),
    [(rf"\sqrt{{{n}}}", decimal) for n, decimal in ((2, "1.414214"), (3, "1.7320508"))] + [("1/3", "0.333333")],
)
def test_decimals_stand_for_exact_values_only_where_the_recipe_says_so(answer, truth):
    assert decide(truth, answer) is False
    assert decide(truth, answer, rounded=True) is True


NESTED = [
    "x+" + r"\frac{1}{x+" * 38 + "y" + "}" * 38,
    "".join(rf"x+{i}+\frac{{y}}{{" for i in range(30)) + "x" + "}" * 30,
    "+".join(rf"\sqrt{{{10**8 - i}}}" for i in range(1, 60)),
    r"\{" * 100 + "6" + r"\}" * 100,
    r"\sin" * 190 + "x",
    "+".join(f"(x+{i}y+z)^{{8}}" for i in range(60)),
    r"(\sin x+\cos y+\tan z)^{40}",
    "(" * 20 + "1.0000000000000001" + ")^{399}" * 20,
    "9^{9^{9^{9}}}",
]


@pytest.mark.timeout(60)
def test_hostile_answers_need_neither_a_time_out_nor_much_memory():
    """They took at most 0.1 s each. Fullwidth digits among them are digits."""
    tracemalloc.start()
    for answer in NESTED + [text for text in hostile(3, 300) if "\uff15" not in text]:
        assert not decide(answer, "5") and not decide(answer, r"\frac{\sqrt{3}}{x+1}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20


SYMBOLS = [
    *r"05xei+-*/^_=<>(){}[]|!,;:.%$&~?'\"#@ \é½²√π∞±≤∪∅",
    *[
        r"\frac",
        r"\sqrt",
        r"\text{",
        r"\pm",
        r"\cup",
        r"\left(",
        r"\{",
        r"\boxed{",
        r"\begin{pmatrix}",
        r"\\",
        r"\pmod",
    ],
    *[
        "^{",
        "_{",
        r"\log_",
        "or ",
        "one ",
        "0.(",
        "(1,2),",
        "x=",
        "10^",
        "(x+1)",
        "f(",
        "|x",
        r"\{1\},",
        "5!",
        "cm/",
        "- ",
    ],
]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_in_thousands_neither_raise_nor_pass(symbol):
    for count in (3, 40, 10_000):
        for text in (f"5{symbol * count}", f"{symbol * count}6", (symbol * count)[:1000] + "6"):
            assert decide(text, r"\frac{7}{3}") in (False, None)
            assert decide("(7,3)", text) in (False, None)


def test_a_megabyte_of_bytes_is_refused():
    for byte in (b"\x00", b"\xff", b"(", b"5", b"\\", b"\xf0\x9f\x98\x80"):
        assert decide((byte * 1_000_000)[:1_000_000].decode(errors="surrogateescape"), "5") is False
