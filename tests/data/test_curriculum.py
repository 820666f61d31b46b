"""Which problems a curriculum draws: by weight, without those that are solved or outside the pre-filter, resumed."""

import json
from collections import Counter

import pytest

from retool_mcore.data.arithmetic import problems
from retool_mcore.data.curriculum import FLOOR, Curriculum, load_curriculum
from retool_mcore.data.prepare import write_problems
from retool_mcore.errors import UserError

ABC = {"a", "b", "c"}


def drawn(curriculum: Curriculum, epochs: int) -> Counter:
    return Counter(name for _ in range(epochs) for name in sorted(ABC) if curriculum.takes(name))


def test_without_options_every_problem_is_drawn_whatever_was_measured():
    curriculum = Curriculum()
    for name in ABC:
        curriculum.measure(name, 1.0)
    assert drawn(curriculum, 9) == dict.fromkeys(ABC, 9) and curriculum.passed_over == 0


def test_problems_are_drawn_in_proportion_to_how_near_their_pass_rate_is_to_a_half():
    curriculum = Curriculum(weights=True, rates={"a": 1.0, "b": 0.25})
    found = drawn(curriculum, 4000)
    assert found["c"] == 4000  # not measured
    assert abs(found["b"] / 4000 - 4 * 0.25 * 0.75) < 0.03 and abs(found["a"] / 4000 - FLOOR) < 0.03
    assert curriculum.passed_over == 12000 - found.total()
    for _ in range(8):
        curriculum.measure("a", 0.5)
    assert drawn(curriculum, 1000)["a"] > 990  # the newest groups count most


def test_a_problem_retires_once_its_whole_group_solved_it_so_often_in_a_row():
    curriculum = Curriculum(retire=2, problems=ABC)
    for rate in (1.0, 0.75, 1.0):
        curriculum.measure("a", rate)
    assert drawn(curriculum, 3)["a"] == 3 and not curriculum.retired
    curriculum.measure("a", 1.0)
    assert drawn(curriculum, 3) == {"b": 3, "c": 3} and curriculum.retired == {"a"}


def test_when_all_are_retired_it_says_so_and_goes_on_with_all(capsys):
    curriculum = Curriculum(retire=1, problems=ABC)
    for name in ABC:
        curriculum.measure(name, 1.0)
    assert "all 3 problems are retired" in capsys.readouterr().out
    assert drawn(curriculum, 2) == dict.fromkeys(ABC, 2)


def test_a_resumed_curriculum_draws_what_the_other_would_have_drawn(tmp_path):
    options = {"weights": True, "retire": 1, "seed": 3, "problems": ABC}
    first = Curriculum(**options)
    drawn(first, 5)
    first.measure("a", 0.1)
    first.measure("b", 1.0)
    first.save(tmp_path)
    resumed, fresh = Curriculum(**options), Curriculum(**options)
    resumed.load(tmp_path)
    fresh.load(tmp_path / "none")
    orders = [[curriculum.takes("abc"[n % 3]) for n in range(60)] for curriculum in (first, resumed, fresh)]
    assert orders[0] == orders[1] != orders[2]
    assert (resumed.rates, resumed.solved, resumed.retired) == (first.rates, first.solved, {"b"})


@pytest.fixture
def prepared(tmp_path):
    """(parquet of four problems, a writer of an evaluation's file with these verdicts of each)."""
    made = problems(4, seed=1)
    write_problems(made, tmp_path / "train.parquet", template="tiny", split="train")

    def evaluated(*verdicts, answer=None):
        rows = [
            {"index": index, "sample": sample, "acc": acc, "ground_truth": answer or made[index].answer}
            for index, own in enumerate(verdicts)
            for sample, acc in enumerate(own)
        ]
        path = tmp_path / "trajectories.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return str(tmp_path / "train.parquet"), evaluated


def test_the_pre_filter_keeps_problems_of_these_pass_rates_and_those_without_one(prepared):
    file, evaluated = prepared
    path = evaluated([1.0, 1.0], [1.0, 0.0], [0.0, 0.0])
    found = load_curriculum({"pass_rates": path, "keep": [0.2, 0.8]}, file, seed=1)
    assert found.problems == {"arithmetic/1", "arithmetic/3"}
    assert found.rates == {"arithmetic/0": 1.0, "arithmetic/1": 0.5, "arithmetic/2": 0.0}
    assert [found.takes(f"arithmetic/{n}") for n in range(4)] == [False, True, False, True]
    assert load_curriculum({}, file, seed=1).problems == frozenset()
    assert len(load_curriculum({"retire": 2}, [file], seed=1).problems) == 4


def test_a_file_of_other_problems_or_none_and_a_filter_that_leaves_nothing_are_refused(prepared, tmp_path):
    file, evaluated = prepared

    def refused(path, keep=None):
        with pytest.raises(UserError) as error:
            load_curriculum({"pass_rates": str(path), "keep": keep}, file, seed=1)
        return str(error.value)

    assert "number 0 has another answer" in refused(evaluated([1.0], answer="x"))
    assert "expected the trajectories.jsonl of `retool eval` on data.train_files" in refused(tmp_path / "none")
    assert "leaves none of 4 problems" in refused(evaluated([1.0], [1.0], [0.0], [0.0]), [0.4, 0.6])


def test_problems_of_one_source_share_a_pass_rate():
    """A generated problem is met once: what is known of its level says how much it teaches."""
    curriculum = Curriculum(weights=True, by="source")
    for n in range(40):
        curriculum.measure(f"easy/{n}", 1.0)
        curriculum.measure(f"middle/{n}", n % 2)
        curriculum.measure(f"hard/{n}", 0.0)
    found = Counter(
        source for n in range(100, 500) for source in ("easy", "middle", "hard") if curriculum.takes(f"{source}/{n}")
    )
    assert found["middle"] > 350 and found["easy"] < 100 and found["hard"] < 100
    assert set(curriculum.rates) == {"easy", "middle", "hard"}


def test_one_group_moves_the_rate_of_a_source_less_than_that_of_a_problem():
    by_source, by_problem = Curriculum(by="source"), Curriculum()
    for curriculum in (by_source, by_problem):
        curriculum.measure("a/1", 0.0)
        curriculum.measure("a/1", 1.0)
    assert (by_source.rates, by_problem.rates) == ({"a": 0.125}, {"a/1": 0.5})


def test_a_solved_source_is_retired_and_comes_back_once_all_are(capsys):
    curriculum = Curriculum(retire=2, by="source", problems=["a/1", "a/2", "b/1"])
    for n in (1, 2):
        curriculum.measure(f"a/{n}", 1.0)
    assert [curriculum.takes(name) for name in ("a/1", "a/2", "b/1")] == [False, False, True]
    for _ in range(2):
        curriculum.measure("b/1", 1.0)
    assert "all 2 data sources are retired" in capsys.readouterr().out
    assert curriculum.takes("a/1")
