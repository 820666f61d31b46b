import pytest

from retool_mcore.cli.benchmarks import BENCHMARKS, expanded
from retool_mcore.config import compose
from retool_mcore.errors import UserError


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_name_is_the_data_and_the_grader_of_the_package(name):
    config = compose("eval", expanded([f"benchmark={name}", "policy=sft"]))
    data, *reward = (word.partition("=")[2] for word in BENCHMARKS[name])
    assert config.data.name == data and config.label == f"sft-{name}"
    assert not reward or config.recipe.reward.name == reward[0]


def test_the_command_line_wins_and_other_evaluations_are_as_they_were():
    words = expanded(["name=mine", "benchmark=human_eval", "k=4", "label=own", "data.max_response_tokens=1024"])
    config = compose("eval", words)
    assert (config.k, config.label, config.rollout.max_response_tokens) == (4, "own", 1024)
    assert expanded(["name=mine", "policy=rl"]) == ["name=mine", "policy=rl"]


def test_an_unknown_benchmark_names_the_nearest_and_two_are_refused():
    with pytest.raises(UserError, match="did you mean bfcl"):
        expanded(["benchmark=bfc"])
    with pytest.raises(UserError, match="given twice, as bfcl and aime"):
        expanded(["benchmark=bfcl", "benchmark=aime"])
