"""data=reasoning_gym: rows by seed, splits that share no question, families and parameters that exist."""

import json

import pytest
from official_rows import answering, needs

from retool_mcore.config import compose
from retool_mcore.data.curriculum import Curriculum, problem_name
from retool_mcore.data.reasoning_gym import KEY, SPLITS, _shares, draw, sources
from retool_mcore.errors import UserError
from retool_mcore.rewards.official import reasoning_gym

needs("reasoning_gym")
SIZES = {"train": 40, "test": 10, "held_back": 6}


@pytest.fixture(scope="module")
def made():
    levels = [{"max_terms": 2}, {"min_terms": 4, "max_terms": 6}]
    named = sources(["gcd", {"family": "chain_sum", "levels": levels, "weight": 2}])
    return named, draw(named, SIZES, seed=3)


def test_each_level_is_a_data_source_with_its_share(made):
    named, found = made
    assert [source.name for source in named] == ["gcd", "chain_sum_1", "chain_sum_2"]
    assert named[2].parameters == {"min_terms": 4, "max_terms": 6}
    for split, size in SIZES.items():
        counts = [sum(p.data_source == s.name for p in found.splits[split]) for s in named]
        assert sum(counts) == size and max(counts) - min(counts) <= 1, split
        assert [p.index for p in found.splits[split]] == list(range(size))


def test_no_question_is_in_two_splits_or_twice_in_one(made):
    questions = [p.key for split in SPLITS for p in made[1].splits[split]]
    assert len(set(questions)) == len(questions) == sum(SIZES.values())


def test_a_row_carries_what_its_grader_needs(made):
    for problem in made[1].splits["test"]:
        row = json.loads(json.dumps(problem.extra))
        assert reasoning_gym(answering(problem.answer, row), timeout_s=60.0) == 1.0
        assert reasoning_gym(answering("no number", row), timeout_s=60.0) == 0.0


def test_a_seed_draws_the_same_and_another_seed_others(made):
    named, first = made
    again, other = draw(named, SIZES, seed=3), draw(named, SIZES, seed=4)
    assert again == first
    shared = {p.key for p in other.splits["train"]} & {p.key for p in first.splits["train"]}
    assert len(shared) < SIZES["train"] / 4


def test_a_family_whose_answer_is_one_of_many_has_rows_without_an_answer():
    found = draw(sources("graph_color"), {"train": 2, "test": 1, "held_back": 1}, seed=1)
    assert {p.answer for p in found.splits["train"]} == {""}
    assert found.splits["train"][0].extra["family"] == "graph_color"


@pytest.mark.parametrize(
    "value, reason",
    [
        (["chainsum"], "no family 'chainsum': did you mean chain_sum"),
        (["no such thing at all"], "no family 'no such thing at all': there are ab, acre, .*, ..."),
        ([{"family": "gcd", "parameters": {"max_valu": 5}}], "gcd has no parameter 'max_valu': did you mean max_value"),
        ([{"family": "gcd", "levels": [{"seed": 5}]}], "gcd has no parameter 'seed'"),
        ([{"family": "gcd", "levels": []}], "levels: .*at least 1"),
        ([{"familly": "gcd"}], "expected one of the keys family, name, weight|family: Field required"),
        ([{"family": "gcd", "weight": 0}], "weight: .*greater than 0"),
        ([{"family": "gcd", "weight": "much"}], "weight: .*number"),
        ([3], "valid dictionary"),
        (["gcd", "gcd"], "two data sources of the name gcd"),
        ([], "names no family"),
        (None, "names no family"),
        (["composite"], "no family 'composite'"),
    ],
)
def test_what_the_list_of_families_may_not_hold(value, reason):
    with pytest.raises(UserError, match=f"(?s){KEY}.*({reason})"):
        sources(value)


@pytest.mark.parametrize(
    "family, parameters, reason",
    [
        ("gcd", {"min_numbers": 5, "max_numbers": 2}, "gcd refuses the parameters of gcd .*max_numbers"),
        ("gcd", {"max_value": "many"}, "gcd refuses the parameters of gcd"),
        (
            "chain_sum",
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            "only .* different questions",
        ),
    ],
)
def test_parameters_that_a_family_cannot_draw_with(family, parameters, reason):
    named = sources([{"family": family, "parameters": parameters}])
    with pytest.raises(UserError, match=f"{KEY}.*{reason}"):
        draw(named, {"train": 400, "test": 1, "held_back": 1}, seed=1)


def test_shares_are_whole_and_add_up():
    named = sources(["gcd", {"family": "lcm", "weight": 0.5}, {"family": "products", "weight": 3}])
    assert _shares(named, 9) == [2, 1, 6]
    assert all(sum(_shares(named, total)) == total for total in range(30))


def test_levels_are_what_a_curriculum_by_source_draws(made):
    curriculum = Curriculum(weights=True, by="source")
    for problem in made[1].splits["train"]:
        rate = {"gcd": 1.0, "chain_sum_1": 0.5, "chain_sum_2": 0.0}[problem.data_source]
        curriculum.measure(problem_name(problem.data_source, problem.index), rate)
    assert set(curriculum.rates) == {"gcd", "chain_sum_1", "chain_sum_2"}


def test_the_sizes_and_the_unit_of_the_curriculum_are_checked():
    wrong = {"reasoning_gym.train=0": "expected 1 or more", "curriculum.by=level": "problem.*source"}
    for override, reason in wrong.items():
        with pytest.raises(UserError, match=f"data.{override}: .*{reason}"):
            compose("prepare", ["data=reasoning_gym", f"data.{override}"])
