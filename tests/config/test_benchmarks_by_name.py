import pytest

from retool_mcore.config import compose, own_words
from retool_mcore.config.benchmarks import BENCHMARKS
from retool_mcore.errors import UserError


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_name_is_the_data_and_the_grader_of_the_package(name):
    config = compose("eval", [f"benchmark={name}", "policy=sft"])
    data, *reward = (word.partition("=")[2] for word in BENCHMARKS[name])
    assert config.data.name == data and config.label == f"sft-{name}"
    assert not reward or config.recipe.reward.name == reward[0]


def test_the_command_line_wins():
    words = ["name=mine", "benchmark=human_eval", "k=4", "label=own", "data.max_response_tokens=1024"]
    config = compose("eval", words)
    assert (config.k, config.label, config.rollout.max_response_tokens) == (4, "own", 1024)
    assert compose("eval", ["benchmark=bfcl", "recipe.reward.name=toolrl"]).recipe.reward.name == "toolrl"


def test_an_unknown_benchmark_is_refused_and_other_stages_have_none():
    with pytest.raises(UserError, match="benchmark.*bfc.*human_eval"):
        compose("eval", ["benchmark=bfc"])
    assert own_words("rl", ["name=a", "benchmark=bfcl"], ["rl", "eval"]) == ["name=a"]
