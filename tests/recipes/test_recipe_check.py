"""What a recipe is refused for, and that every one that can run is accepted."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError
from retool_mcore.recipes.check import check_recipe, check_rewards

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


LINES = ["data=functions", "data.functions.style=lines"]


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        # The report's: each of 4,254 trajectories met it.
        ("dapo", ["data.max_response_tokens=384", "recipe.overlong_buffer=1024"], "recipe.overlong_buffer=1024 excee"),
        ("dapo", ["data.overlong_buffer=4096"], "recipe.overlong_buffer=4096 exceeds rollout.max_response_tokens=320"),
        ("cispo", ["rollout.max_response_tokens=31", "rollout.max_observation_tokens=30"], "recipe.overlong_buffer=32"),
        ("retool", ["recipe.overlong_buffer=321"], "recipe.overlong_buffer=321 exceeds rollout.max_response_tokens=3"),
        ("zerotir", ["recipe.filters.accuracy=[0.01,0.1]"], "recipe.filters.accuracy=[0.01, 0.1] lets no group of tr"),
        ("simpletir", ["train.n=2", "recipe.filters.accuracy=[0.5,0.9]"], "recipe.filters.accuracy=[0.5, 0.9] lets no"),
        ("retool", ["recipe.reward.name=tool_n1"], "recipe.reward.name=tool_n1 compares function calls, and with rec"),
        ("toolrl", [*LINES, "recipe.answer=boxed"], "recipe.reward.name=toolrl compares function calls, and with rec"),
        ("toolrl", [*LINES, "recipe.reward.args.schedule_steps=0"], "recipe.reward.args.schedule_steps=0: expected m"),
        ("toolrl", [*LINES, "recipe.reward.args.maximum=-1"], "recipe.reward.args.maximum=-1: expected more than 0."),
        ("toolrl", [*LINES, "recipe.reward.args.granularity=coarsest"], "recipe.reward.args.granularity=coarsest: it"),
        ("torl", ["recipe.reward.args.executability=much"], "recipe.reward.args.executability=much: it should be a v"),
        ("otc", ["recipe.group_reward.args.max_calls=0"], "max_calls=0 of OTC's reward: expected 1 or more calls"),
        ("otc", ["recipe.reward.args.alpha=0"], "alpha=0 of OTC's reward: expected more than 0"),
        ("retool", ["recipe.reward.name=environment"], "recipe.reward.name=environment adds up the rewards of an env"),
    ],
)  # fmt: skip
def test_what_a_reward_would_meet_at_its_first_trajectory_is_refused(name, overrides, sentence):
    small = [word for word in overrides if "observation" not in word]
    config = recipe(name, *small) if small == overrides else recipe(name)
    for word in overrides if small != overrides else ():
        OmegaConf.update(config, word.split("=")[0], int(word.split("=")[1]))
    with pytest.raises(UserError) as caught:
        check_recipe(config.recipe)
        check_rewards(OmegaConf.to_container(config))
    assert str(caught.value).startswith(sentence), str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_fits_its_own_data(name):
    data = {"tool_n1": ["data=functions"], "toolrl": LINES, "skyrl": ["data=repo_bugs"]}.get(name, ["data=math"])
    check_rewards(OmegaConf.to_container(recipe(name, *data)))


def test_a_buffer_as_long_as_the_response_is_taken():
    check_rewards(OmegaConf.to_container(recipe("dapo", "recipe.overlong_buffer=320")))


OWN = """
from retool_mcore.errors import UserError


def picky(sample, *, bonus: float = 0.0):
    return bonus


def check_picky(config, *, bonus=0.0):
    if config["train"]["n"] < 4:
        raise UserError("picky needs train.n=4 or more.")
    return 1 / (bonus - 7)
"""


def test_a_users_reward_has_a_check_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "own_picky.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["recipe.reward.name=own_picky.picky"]
    check_rewards(OmegaConf.to_container(recipe("retool", *words)))
    with pytest.raises(UserError, match=r"^picky needs train.n=4 or more\.$"):
        check_rewards(OmegaConf.to_container(recipe("retool", *words, "train.n=2")))
    broken = r"recipe.reward.name=own_picky.picky: own_picky.check_picky, .*raised ZeroDivisionError: .*\.$"
    with pytest.raises(UserError, match=broken):
        check_rewards(OmegaConf.to_container(recipe("retool", *words, "recipe.reward.args={bonus: 7}")))
    with pytest.raises(UserError, match=r"recipe.reward.args.bonus=high: it should be a valid number\.$"):
        check_recipe(recipe("retool", *words, "recipe.reward.args={bonus: high}").recipe)
