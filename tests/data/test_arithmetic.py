"""The embedded task: exact answers, sets that never share a question, traces that do what they say."""

import contextlib
import io
import re

import pytest
import yaml
from sympy import sympify

from retool_mcore.config import CONFIG_DIR
from retool_mcore.data import arithmetic
from retool_mcore.data.records import normalise_question
from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.errors import UserError


def run(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().strip()


def test_answers_are_what_python_computes():
    for problem in arithmetic.problems(300, seed=5):
        expression = re.fullmatch(r"Compute ([0-9+*-]+)\.", problem.question)[1]
        assert problem.answer == str(sympify(expression))


def test_problems_are_hard_distinct_numbered_and_of_the_size_asked_for():
    drawn = arithmetic.problems(500, seed=2, terms=(2, 3), digits=(3, 4))
    assert len({normalise_question(p.question) for p in drawn}) == 500
    assert [p.index for p in drawn] == list(range(500))
    assert {p.data_source for p in drawn} == {"arithmetic"}
    sizes = set()
    for problem in drawn:
        numbers = re.findall("[0-9]+", problem.question)
        assert all(3 <= len(n) <= 4 and n[0] != "0" for n in numbers)
        assert problem.question.count("*") == 1
        sizes.add(len(numbers))
    assert sizes == {2, 3}


def test_a_seed_gives_the_same_problems_and_another_seed_others():
    first = arithmetic.problems(50, seed=1)
    assert arithmetic.problems(50, seed=1) == first
    assert arithmetic.problems(60, seed=1)[:50] == first
    assert not {p.question for p in arithmetic.problems(50, seed=2)} & {p.question for p in first}


def test_ranges_too_small_for_the_number_of_problems_are_refused():
    with pytest.raises(UserError, match="no 200 distinct questions with 2-2 numbers of 1-1 digits"):
        arithmetic.problems(200, seed=1, terms=(2, 2), digits=(1, 1))


def test_a_tool_trace_prints_what_it_observes_and_boxes_it():
    for trace in arithmetic.solve(arithmetic.problems(50, 3), 3, 1.0):
        code, observation, text = trace.segments
        assert (code.kind, observation.kind, text.kind) == ("code", "observation", "text")
        assert run(code.text) == observation.text
        assert text.text == f"\\boxed{{{observation.text}}}"
        assert trace.question == f"Compute {code.text[len('print(') : -1]}."


def test_a_trace_without_the_tool_boxes_an_estimate_that_is_almost_never_exact():
    problems = arithmetic.problems(400, seed=4)
    exact = 0
    for problem, trace in zip(problems, arithmetic.solve(arithmetic.problems(400, 4), 4, 0.0), strict=True):
        (text,) = trace.segments
        assert text.kind == "text"
        guess = int(re.fullmatch(r"\\boxed\{(-?[0-9]+)\}", text.text)[1])
        assert abs(guess - int(problem.answer)) <= 0.5 * abs(int(problem.answer))
        exact += guess == int(problem.answer)
    assert exact <= 8


@pytest.mark.parametrize(("value", "rounded"), [(4821, 5000), (-96, -100), (7, 7), (0, 0), (-14, -10), (15, 20)])
def test_estimate_keeps_one_digit(value, rounded):
    assert arithmetic.estimate(value) == rounded


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_tool_share_is_the_share_of_traces_with_code(share):
    traces = arithmetic.solve(arithmetic.problems(2000, 6), 6, share)
    assert sum(len(t.segments) == 3 for t in traces) / 2000 == pytest.approx(share, abs=0.05)


def test_a_first_program_that_fails_really_fails_and_is_put_right():
    limit = yaml.safe_load((CONFIG_DIR / "data/arithmetic.yaml").read_text())["max_observation_tokens"]
    kinds = set()
    for trace in arithmetic.solve(arithmetic.problems(24, 3, (4, 4), (4, 4)), 3, 1.0, 1.0):
        wrong, error, right, output, text = trace.segments
        assert [s.kind for s in trace.segments] == ["code", "observation", "code", "observation", "text"]
        with pytest.raises((SyntaxError, NameError, TypeError)) as raised:
            run(wrong.text)
        assert error.text.endswith(f"{type(raised.value).__name__}: {getattr(raised.value, 'msg', raised.value)}")
        assert 'File "<code>", line 1' in error.text and wrong.text in error.text
        assert right.text == f"print({trace.question[len('Compute ') : -1]})"
        assert run(right.text) == output.text and text.text == f"\\boxed{{{output.text}}}"
        # A longer one would be cut in the rollout, and SFT teach what RL never shows.
        assert len(build_tokenizer().encode(error.text).ids) <= limit
        kinds.add(error.text.splitlines()[-1])
    assert kinds == set(arithmetic.KINDS)


def test_a_program_that_was_to_fail_and_does_not_is_named():
    with pytest.raises(UserError, match=r"'print\(1\)' was to fail, but ended with success \(1\)"):
        arithmetic.observations(["print(1)"])


def test_failed_share_is_of_the_traces_with_code_and_changes_no_other(monkeypatch):
    monkeypatch.setattr(arithmetic, "observations", lambda programs: ["an error"] * len(programs))
    without = arithmetic.solve(arithmetic.problems(3000, 6), 6, 0.5)
    traces = arithmetic.solve(arithmetic.problems(3000, 6), 6, 0.5, 0.25)
    failed = [len(trace.segments) == 5 for trace in traces]
    assert sum(failed) / sum(len(trace.segments) > 1 for trace in traces) == pytest.approx(0.25, abs=0.03)
    assert all(one == other for one, other, bad in zip(traces, without, failed, strict=True) if not bad)


def test_the_three_sets_share_no_question():
    made = arithmetic.task(sft=600, train=200, validation=100, seed=1)
    assert (len(made.sft), len(made.train), len(made.validation)) == (600, 200, 100)
    questions = [normalise_question(record.question) for record in (*made.sft, *made.train, *made.validation)]
    assert len(set(questions)) == 900
    for part in (made.sft, made.train, made.validation):
        assert [record.index for record in part] == list(range(len(part)))


def test_the_validation_set_does_not_depend_on_the_size_of_the_others():
    small = arithmetic.task(sft=10, train=10, validation=50, seed=1)
    assert arithmetic.task(sft=500, train=300, validation=50, seed=1).validation == small.validation
