"""What a recipe is refused for, and that every one that can run is accepted."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError
from retool_mcore.recipes.check import check_recipe

RECIPES = sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))
REFUSED = {}


def recipe(name="retool", *overrides):
    return compose("rl", [f"recipe={name}", *overrides])


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_accepted_or_says_what_it_needs(name):
    config = recipe(name)
    assert config.recipe.name == name
    if name not in REFUSED:
        check_recipe(config.recipe)
        return
    with pytest.raises(UserError, match=rf"^recipe={name} needs .*{REFUSED[name]}.*\.$"):
        check_recipe(config.recipe)


@pytest.mark.parametrize(
    ("name", "override", "words"),
    [
        ("retool", "recipe.reward.name=otc_ppo", "args do not fit otc_ppo: missing a required argument: 'max_calls'"),
        ("torl", "recipe.reward.name=zerotir", "args do not fit zerotir: got an unexpected keyword argument"),
        ("retool", "recipe.reward.name=nope", "no reward is called 'nope'"),
        ("otc", "recipe.group_reward.name=a.b", "cannot be loaded"),
        ("retool", "recipe.filters.samples=[void]", "void_turn"),
        ("retool", "recipe.filters.samples=[void_turn]", "policy_loss=retool, not vanilla"),
        ("retool", "recipe.observation_weight=0.1", "policy_loss=retool"),
        ("simpletir", "recipe.loss_aggregation=seq-mean-token-mean", "token-mean, not seq-mean"),
    ],
)
def test_what_does_not_fit_is_one_sentence(name, override, words):
    config = recipe(name, override)
    with pytest.raises(UserError, match=words) as caught:
        check_recipe(config.recipe)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_a_users_reward_takes_any_arguments():
    config = recipe(
        "retool", "recipe.reward.name=retool_mcore.rewards.outcome.torl", "recipe.reward.args.executability=-1"
    )
    assert OmegaConf.to_container(config.recipe.reward.args) == {"executability": -1}
    check_recipe(config.recipe)


def test_what_the_recipes_set_reaches_verl_and_the_rollout():
    torl = recipe("torl")
    assert (torl.rollout.max_turns, torl.rollout.max_observation_chars, torl.rollout.error_lines) == (1, 256, 1)
    zerotir = recipe("zerotir").verl
    actor = zerotir.actor_rollout_ref.actor
    assert zerotir.algorithm.adv_estimator == "reinforce_plus_plus_baseline"
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.policy_loss.loss_mode) == (0.22, 0.28, "retool")
    assert actor.ppo_mini_batch_size == zerotir.data.train_batch_size
    skyrl = recipe("skyrl", "data=math").verl.actor_rollout_ref.actor
    assert (skyrl.loss_agg_mode, skyrl.loss_scale_factor) == ("seq-mean-token-sum-norm", 16384)
    assert recipe("tool_n1").verl.actor_rollout_ref.actor.kl_loss_type == "low_var_kl"
