"""reasoning-gym's scores in the sandbox: right answers are paid, and nothing that an answer says is run."""

import time
from pathlib import Path

import pytest
from official_rows import answering, entry, needs

from retool_mcore.errors import UserError
from retool_mcore.official.graders import REASONING_GYM
from retool_mcore.rewards.official import reasoning_gym

needs("reasoning_gym")

# Families whose scores call eval or sympy's parser on the answer, and one that compares texts.
EVALUATED = ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens"]
PARSED = ["countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration"]


@pytest.fixture(scope="module")
def rows():
    return {family: entry(family) for family in [*EVALUATED, *PARSED, "gcd", "letter_counting", "time_intervals"]}


def pay(row, family, answer, **args):
    return reasoning_gym(answering(answer, {"family": family, "entry": row["entry"]}), **args)


# Their official scorers read past what is appended: C1 names another constant of integration, "99 days1" is 99 days.
READS_A_SUFFIX = {"simple_integration", "intermediate_integration", "time_intervals"}


@pytest.mark.parametrize("family", [*EVALUATED, *PARSED, "gcd", "letter_counting", "time_intervals"])
def test_the_right_answer_is_paid_and_others_are_not(rows, family):
    row = rows[family]
    assert pay(row, family, row["answer"]) == 1.0
    altered = [] if family in READS_A_SUFFIX else [row["answer"] + "1"]
    for wrong in ("", "42424", *altered, "I do not know"):
        assert pay(row, family, wrong) == 0.0, wrong


def test_an_answer_among_other_words_is_paid_only_where_partial_scores_are_asked_for(rows):
    row = rows["gcd"]
    hedged = f"1 or 2 or {row['answer']} or 4"
    assert pay(row, "gcd", hedged) == 0.0
    assert 0.0 < pay(row, "gcd", hedged, partial=True) < 1.0
    assert pay(row, "gcd", row["answer"], partial=True) == 1.0


def attacks(target):
    return [
        f"[open({str(target)!r}, 'w').write('x')]",
        f"__import__('os').system('touch {target}')",
        f"__import__('pathlib').Path({str(target)!r}).touch()",
        "__import__('sys').exit(0)",
        "exit()",
        "__import__('os')._exit(0)",
        "[c for c in ().__class__.__base__.__subclasses__()]",
        "(lambda: __import__('builtins').__dict__.update(float=lambda x: 1.0))()",
        "setattr(self, 'score_answer', lambda *a: 1.0)",
        "print('1.0')",
        "__import__('os').write(4, b'[\"nonce\", 1.0]')",
        "__import__('sys')._getframe(1).f_locals['oracle_answer']",
        "entry['answer']",
        "oracle_answer",
        "[o for o in __import__('gc').get_objects() if isinstance(o, dict) and 'answer' in o][0]['answer']",
        f"Symbol('open({str(target)!r}, \"w\")')",
        f"Integer('open({str(target)!r}, \"w\")')",
        f'sympify(\'open({str(target)!r}, "w").write("x")\')',
        f"S('[].append(open({str(target)!r}, \"w\"))')",
        "lambdify(x, x)(1)",
        "preview(x)",
    ]


@pytest.mark.parametrize("family", [*EVALUATED, *PARSED, "gcd"])
def test_nothing_that_an_answer_says_is_run(rows, family, tmp_path):
    target = tmp_path / "written"
    tmp_path.chmod(0o777)
    for answer in attacks(target):
        assert pay(rows[family], family, answer) == 0.0, answer
    assert not target.exists()
    row = rows[family]
    assert pay(row, family, row["answer"]) == 1.0  # the grader is as it was


@pytest.mark.parametrize("answer", ["9**9**9**9", "'a' * 10**11", "[0] * 10**11", "factorial(10**9)", "[" * 5000])
@pytest.mark.parametrize("family", ["spiral_matrix", "puzzle24"])
def test_an_answer_that_never_ends_or_fills_the_memory_is_worth_nothing(rows, family, answer):
    start = time.monotonic()
    assert pay(rows[family], family, answer, timeout_s=3.0) == 0.0
    assert time.monotonic() - start < 60  # the limit, and what a busy machine adds


def test_the_truth_stays_in_the_sandbox_and_its_package_out_of_this_process(rows):
    import sys

    pay(rows["gcd"], "gcd", "1")
    assert "reasoning_gym" not in sys.modules


def test_an_unknown_family_or_row_is_worth_nothing_and_a_foreign_row_is_refused(rows):
    assert REASONING_GYM.ask("score", 10.0, family="nowhere", entry=rows["gcd"]["entry"], answer="1") is None
    with pytest.raises(UserError, match="needs rows of data=reasoning_gym.*has no family"):
        reasoning_gym(answering("1", {}))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_family_accepts_its_own_answer_through_the_sandbox():
    slow = {"knight_swap", "futoshiki"}  # minutes for a few problems
    for family in sorted(REASONING_GYM.ask("families", 60.0).keys() - slow):
        row = entry(family)
        if row["answer"] is not None:
            assert pay(row, family, row["answer"]) == 1.0, family


def test_the_example_of_the_page_names_families_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "official.md").read_text()
    known = REASONING_GYM.ask("families", 60.0)
    for name in ("chain_sum", "products", "letter_counting"):
        assert name in page and name in known
