"""`retool eval` of a run's policy has the settings that the run trained with; the command line changes them."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose, own_words
from retool_mcore.config.trained import TAKEN_OVER, report
from retool_mcore.errors import UserError


@pytest.fixture
def trained(tmp_path):
    """Compose a stage's configuration and write it into the run `x` as the stage does; returns the words for eval."""

    def train(stage, *overrides):
        words = ["name=x", f"runs_dir={tmp_path}"]
        folder = tmp_path / "x" / stage
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(compose(stage, [*words, *overrides])))
        return words

    return train


def limits(config):
    rollout = config.rollout
    return rollout.max_turns, rollout.after_last_call, rollout.max_observation_chars, rollout.error_lines


@pytest.mark.parametrize("policy", ["init", "sft", "rl", "rl-best"])
def test_a_recipes_policy_is_evaluated_under_its_limits(trained, policy):
    words = trained("rl", "recipe=torl")
    config = compose("eval", [*words, f"policy={policy}"])
    assert limits(config) == (1, "text", 256, 1)
    assert report(config).endswith("x/rl/config.yaml")


def test_a_recipe_brings_its_limits_before_the_run_has_begun(tmp_path):
    config = compose("eval", ["name=x", f"runs_dir={tmp_path}", "recipe=torl"])
    assert limits(config) == (1, "text", 256, 1) and report(config) == ""
    assert compose("eval", ["recipe=tool_n1", "data=functions"]).temperature == 0.7
    assert limits(compose("eval")) == (compose("rl").recipe.max_turns, "end", None, 10)


def test_what_the_run_was_given_counts_and_not_the_recipes_file(trained):
    words = trained(
        "rl", "recipe=torl", "recipe.max_turns=3", "recipe.answer=final_line", "recipe.decimals=rounded",
        "rollout.max_response_tokens=96", "rollout.max_observation_tokens=40", "recipe.temperature=0.6",
        "sandbox.timeout_s=3", "rollout.format=hermes", "model.apply_chat_template_kwargs={enable_thinking: false}",
    )  # fmt: skip
    for more in ([], ["recipe=torl"]):  # as submit and a sweep pass it on
        config = compose("eval", [*words, *more])
        assert limits(config) == (3, "text", 256, 1)
        assert (config.answer, config.decimals, config.temperature) == ("final_line", "rounded", 0.6)
        assert (config.rollout.max_response_tokens, config.rollout.max_turn_tokens) == (96, 96)
        assert (config.sandbox.timeout_s, config.rollout.format) == (3, "hermes")
        assert config.model.apply_chat_template_kwargs == {"enable_thinking": False}
        assert "changed" not in report(config)


@pytest.mark.parametrize(
    ("word", "key", "value", "reported"),
    [
        ("rollout.max_turns=8", "rollout.max_turns", 8, "rollout.max_turns=8 (trained with 1)"),
        ("recipe.max_turns=8", "rollout.max_turns", 8, "rollout.max_turns=8 (trained with 1)"),
        ("temperature=0.0", "temperature", 0.0, "temperature=0.0 (trained with 1.0)"),
        ("data.max_response_tokens=300", "rollout.max_turn_tokens", 300, "rollout.max_response_tokens=300 (trained"),
        ("recipe=retool", "rollout.after_last_call", "end", "rollout.after_last_call=end (trained with text)"),
        ("answer=answer_tag", "answer", "answer_tag", "answer=answer_tag (trained with boxed)"),
        ("decimals=rounded", "decimals", "rounded", "decimals=rounded (trained with exact)"),
        ("sandbox.timeout_s=1", "sandbox.timeout_s", 1, "sandbox.timeout_s=1 (trained with"),
        ("toolbox.timeout_s=1", "toolbox.timeout_s", 1, "toolbox.timeout_s=1 (trained with 30)"),
    ],
)
def test_the_command_line_wins_and_is_reported(trained, word, key, value, reported):
    words = trained("rl", "recipe=torl")
    config = compose("eval", [*words, word])
    assert OmegaConf.select(config, key) == value
    assert reported in report(config)


def test_a_value_that_equals_the_default_is_meant_all_the_same(trained):
    words = trained("rl", "rollout.max_turns=7")
    default = compose("rl").rollout.max_turns
    assert compose("eval", words).rollout.max_turns == 7 != default
    assert compose("eval", [*words, f"rollout.max_turns={default}"]).rollout.max_turns == default


def test_before_rl_the_cold_starts_settings_count_and_a_recipes_over_them(trained):
    words = trained("sft", "rollout.format=none", "rollout.max_turns=5")
    config = compose("eval", [*words, "policy=sft"])
    assert (config.rollout.format, config.rollout.max_turns) == ("none", 5)
    assert compose("eval", [*words, "policy=sft", "recipe=torl"]).rollout.max_turns == 1
    trained("rl", "recipe=torl")
    assert compose("eval", [*words, "policy=sft"]).rollout.max_turns == 1


def test_another_models_folder_is_evaluated_as_the_command_line_says(trained, tmp_path):
    words = trained("rl", "recipe=torl")
    config = compose("eval", [*words, f"policy={tmp_path}/elsewhere"])
    assert config.rollout.max_turns == compose("eval").rollout.max_turns and report(config) == ""
    inside = compose("eval", [*words, f"policy={tmp_path}/x/rl/checkpoints/global_step_2/actor/model/huggingface"])
    assert inside.rollout.max_turns == 1


def test_other_data_keep_their_tools_and_format(trained):
    words = trained("rl", "recipe=torl", "rollout.format=text")
    config = compose("eval", [*words, "data=functions"])
    assert (config.rollout.format, config.answer) == ("hermes", "calls")
    assert config.toolbox.use[0].path.endswith("ReplayTable")
    assert "rollout.format=hermes (trained with text)" in report(config)


def test_a_runs_own_tools_are_taken_over(trained):
    own = "toolbox.use=[{path: mine.Search, args: {index: a}}]"
    config = compose("eval", [*trained("rl", own, "rollout.format=hermes")])
    assert config.toolbox.use[0].path == "mine.Search"


def test_a_broken_configuration_of_the_run_is_named(trained, tmp_path):
    words = trained("rl")
    (tmp_path / "x/rl/config.yaml").write_text("a: [1\n")
    with pytest.raises(UserError, match="x/rl/config.yaml cannot be read"):
        compose("eval", words)


def test_eval_takes_the_recipe_and_leaves_what_trains():
    shared = ["recipe=torl", "recipe.max_turns=2", "recipe.clip_high=0.3", "train.steps=3"]
    assert own_words("eval", shared, ["rl", "eval"]) == shared[:2]
    assert compose("eval", shared[:2]).rollout.max_turns == 2


@pytest.mark.parametrize("key", TAKEN_OVER)
def test_every_key_is_one_of_both_stages(key):
    for stage in ("rl", "eval"):
        assert OmegaConf.select(compose(stage), key, default="absent") != "absent"


def test_the_reward_and_what_is_right_are_the_runs(trained):
    words = trained("rl", "recipe=torl", "recipe.reward.args.executability=-0.5", "recipe.right_from=0.5")
    recipe = compose("eval", words).recipe
    assert (recipe.reward.name, recipe.reward.args.executability, recipe.right_from) == ("torl", -0.5, 0.5)
    own = compose("eval", [*words, "recipe.reward.name=mine.plan", "recipe.reward.args={}", "recipe.right_from=1"])
    assert (own.recipe.reward, own.recipe.right_from) == ({"name": "mine.plan", "args": {}}, 1)
    assert "recipe.right_from=1 (trained with 0.5)" in report(own)
    other = compose("eval", [*words, "recipe=toolrl"]).recipe
    assert other.reward.name == "toolrl" and "executability" not in other.reward.args
