"""Whose numbers a run has: the paper's of its recipe, a toy data set's own, or the command line's."""

import itertools

import pytest

from retool_mcore.config import CONFIG_DIR, compose

# Prompts a step, trajectories a prompt, prompts an update, learning rate: as the papers and released scripts have them.
COMMUNITY = (512, 16, 64, 1e-6)  # ReTool's community run, and what its own paper and others do not give
PUBLISHED = {
    "artist": COMMUNITY,
    "cispo": COMMUNITY,
    "dapo": (512, 16, 32, 1e-6),
    "dr_grpo": (128, 8, 16, 1e-6),
    "grpo": (16, 64, 16, 1e-6),
    "gspo": (512, 16, 128, 1e-6),
    "otc": COMMUNITY,
    "retool": COMMUNITY,
    "simpletir": COMMUNITY,
    "skyrl": (64, 8, 64, 1e-6),
    "tool_n1": (1024, 5, 1024, 1e-6),
    "toolrl": (512, 4, 128, 1e-6),
    "torl": (128, 16, 128, 1e-6),
    "zerotir": (128, 16, 128, 1e-6),
}
ON_POLICY = ("grpo", "zerotir")  # one update a batch is the method's, whatever the data
REAL = ("math", "xlam", "file", "bfcl", "environment", "human_eval", "reasoning_gym")
DATA = sorted(path.stem for path in (CONFIG_DIR / "data").glob("*.yaml"))


def files(**choices):
    return compose("rl", [f"{group}={choice}" for group, choice in choices.items()])


def numbers(config):
    verl = config.verl
    actor = verl.actor_rollout_ref.actor
    used = (verl.data.train_batch_size, verl.actor_rollout_ref.rollout.n, actor.ppo_mini_batch_size, actor.optim.lr)
    train = config.train
    assert used == (train.batch, train.n, train.mini_batch, train.lr)
    return used


def test_every_recipe_is_in_the_table():
    assert set(PUBLISHED) == {path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml")}


# Every recipe on a real and on a toy data set, every data set with a recipe that is on-policy and one that is not.
PAIRS = sorted({*itertools.product(PUBLISHED, ("math", "arithmetic")), *itertools.product(("dapo", "grpo"), DATA)})


@pytest.mark.parametrize(("recipe", "data"), PAIRS)
def test_the_paper_decides_on_real_data_and_a_toy_task_for_itself(recipe, data):
    config = files(recipe=recipe, data=data)
    found = numbers(config)
    if data in REAL:
        assert found == PUBLISHED[recipe]
    else:
        own = config.data.rl
        mini_batch = own.batch if recipe in ON_POLICY else own.mini_batch
        assert found == (own.batch, own.n, mini_batch, own.lr) and own.batch * own.n < 1024


def test_the_kl_term_of_tool_n1():
    actor = files(recipe="tool_n1", data="xlam").verl.actor_rollout_ref.actor
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 1e-3)


@pytest.mark.parametrize("section", ["train", "recipe", "data.rl"])
@pytest.mark.parametrize("data", ["arithmetic", "math"])
def test_the_command_line_decides_before_both(data, section):
    given = [f"{section}.{name}={value}" for name, value in (("batch", 6), ("n", 3), ("mini_batch", 2), ("lr", 1e-4))]
    assert numbers(compose("rl", ["recipe=torl", f"data={data}", *given])) == (6, 3, 2, 1e-4)


def test_the_critic_learns_five_times_as_fast_as_the_policy():
    config = compose("rl", ["recipe.advantage=gae", "data=math"])
    assert config.verl.critic.optim.lr == pytest.approx(5e-6)
