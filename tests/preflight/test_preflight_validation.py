"""What the validation inside the run costs is told, bounded, and by problems that nothing else uses."""

import pytest

from retool_mcore.config import compose
from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import check_validation, told_cost

LARGE = ["model=qwen2.5-32b", "parallel=2x8-80g"]


def train(*overrides):
    return compose("rl", overrides).train


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=math"],
        ["data=xlam", "recipe=tool_n1"],
        ["data=xlam", "recipe=toolrl"],
        ["data=math", "data.rl.batch=16", "data.rl.n=64", "data.rl.mini_batch=16"],
        ["data=math", "recipe=torl", "data.rl.batch=128", "data.rl.mini_batch=128"],
    ],
)
def test_what_is_shipped_passes_and_ranks_by_the_held_back_set(overrides):
    config = compose("rl", [*LARGE, *overrides])
    assert told_cost(config.train, problems=config.data.held_back)
    assert config.train.keep_best == "val/accuracy" and config.train.eval_samples >= 16
    assert config.data.held_back_files not in (config.data.validation_files, config.data.train_files)
    assert config.verl.data.val_files == config.data.held_back_files
    kwargs, rollout = config.verl.actor_rollout_ref.rollout.val_kwargs, config.rollout
    assert (kwargs.n, kwargs.temperature, kwargs.top_p) == (16, rollout.temperature, rollout.top_p)


def test_the_cost_is_told():
    told = told_cost(train("data=math"), problems=128)
    assert told == (
        "validation: 128 problems x 16 samples every 10 steps: 2,048 trajectories next to 81,920 trained on, 2.5%"
    )


def test_the_cost_of_a_first_validation_and_of_the_evaluation_set_is_told():
    words = ["train.eval_before=true", "train.eval_sets=[held_back,evaluation]"]
    assert told_cost(train("data=math", *words), problems=128, reported=60) == (
        "validation: 128 problems x 16 samples and 60 of the evaluation set x 30 every 10 steps and before the first: "
        "3,848 trajectories next to 81,920 trained on, 4.7%"
    )
    assert told_cost(train("data=math", "train.eval_before=true", "train.eval_every=-1"), problems=128) == (
        "validation: 128 problems x 16 samples before the first step: 2,048 trajectories next to 1,228,800 trained on, "
        "0.2%"
    )
    small = ["data.rl.batch=32", "data.rl.mini_batch=4", "train.eval_every=30", *words]
    assert told_cost(train("data=math", *small[:-1]), problems=128)
    with pytest.raises(UserError, match="25.1%, more than train.eval_share=0.25: .* set train.eval_every=31"):
        told_cost(train("data=math", *small), problems=128, reported=60)
    with pytest.raises(UserError, match="train.eval_before=false"):
        told_cost(train("data=math", "train.eval_before=true", "train.eval_every=-1", "train.steps=1"), problems=256)


def test_without_validation_there_is_no_best_and_nothing_to_tell():
    for overrides in ([], ["data=math", "train.eval_every=-1"], ["pipeline=one_step_off"]):
        assert train(*overrides).keep_best is None
        assert told_cost(train(*overrides), problems=64) == ""
    assert train("data=math", "train.keep_best=reward/accuracy").keep_best == "reward/accuracy"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.rl.eval_every=1"], ["25.0%", "train.eval_share=0.2", "train.eval_every=2"]),
        (["data.rl.eval_every=4"], ["train.save_every=30", "train.eval_every=4", "train.keep_best=null"]),
    ],
)
def test_refused(overrides, words):
    section = train("data=math", "train.eval_share=0.2", *overrides)
    with pytest.raises(UserError) as caught:
        told_cost(section, problems=128)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_advice_passes():
    with pytest.raises(UserError, match="train.eval_every=8"):
        told_cost(train("data.rl.eval_every=5", "train.eval_samples=4"), problems=64)
    assert told_cost(train("data.rl.eval_every=8", "data.rl.save_every=8", "train.eval_samples=4"), problems=64)


def test_problems_that_are_trained_on_or_reported_are_refused(tmp_path, capsys):
    def write(name, numbers):
        problems = [Problem("s", f"What is {n}?", "1", n) for n in numbers]
        write_problems(problems, tmp_path / name, template="tiny", split="train")
        return tmp_path / name

    section = train("data=math", "data.rl.batch=64", "data.rl.mini_batch=64")
    files = {"train_files": [write("a", range(9))], "held_back_files": [write("h", range(20, 30))]}
    check_validation(section, files, [str(write("t", range(40, 50))), str(tmp_path / "not_there")])
    assert capsys.readouterr().out.startswith("validation: 10 problems x 16 samples")
    with pytest.raises(UserError, match="data.validation_files share the problem 'what is 29\\?'"):
        check_validation(section, files, str(write("t", range(29, 35))))
    with pytest.raises(UserError, match="data.train_files share the problem 'what is 22\\?'"):
        check_validation(section, files | {"train_files": [write("a", [1, 22])]}, [])
    check_validation(train(), files | {"train_files": [write("a", [1, 22])]}, [])  # none in this run
