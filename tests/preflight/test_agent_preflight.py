"""What an agent program cannot do is refused before an engine starts."""

import sys

import pytest
from omegaconf import OmegaConf

from retool_mcore.backends.verl.settings import endpoint
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.preflight import relations
from retool_mcore.preflight.agents import check_program

GIVEN = ("environment=endpoint", "environment.agent=[python,agent.py]")


def refusal(check, *overrides):
    config = compose("rl", overrides)
    OmegaConf.resolve(config)
    with pytest.raises(UserError) as error:
        check(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def relations_of(config):
    relations.check("rl", config)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["environment=endpoint"], "environment=endpoint needs environment.agent, the command that runs an episode"),
        ([*GIVEN, "environment.env.OPENAI_API_KEY=x"], "environment.env.OPENAI_API_KEY: the endpoint sets this"),
        ([*GIVEN, "environment.env.RETOOL_ROW=x"], "environment.env.RETOOL_ROW: the endpoint sets this variable"),
        (
            [*GIVEN, "pipeline=async"],
            "environment=endpoint needs pipeline=sync or pipeline=partial, not pipeline=async",
        ),
        ([*GIVEN, "pipeline=one_step_off"], "needs pipeline=sync or pipeline=partial, not pipeline=one_step_off"),
        ([*GIVEN, "recipe.advantage=gae"], "recipe.advantage=gae does not go with environment=endpoint"),
        ([*GIVEN, "recipe=gspo"], "recipe.policy_loss=gspo does not go with environment=endpoint"),
        (
            [*GIVEN, "recipe=grpo"],
            "recipe.loss_aggregation=seq-mean-token-mean does not go with environment.segments=16",
        ),
        ([*GIVEN, "correction=decoupled_seq_is"], "correction.rollout_is=sequence does not go with"),
        ([*GIVEN, "correction=decoupled_geo_rs"], "correction.rollout_rs="),
        ([*GIVEN, "recipe=otc", "recipe.loss_aggregation=token-mean"], "recipe.group_reward.name="),
        ([*GIVEN, "trace.backend=otlp"], "trace.backend=otlp does not trace agents"),
        ([*GIVEN, "environment.episode_s=600"], "environment.episode_s=600 is as long as watchdog_minutes=10"),
    ],
)
def test_what_is_not_defined_over_conversations_is_refused(overrides, words):
    assert words in refusal(relations_of, *overrides)


def test_one_segment_takes_what_several_cannot():
    for recipe in ("recipe=grpo", "correction=decoupled_seq_is"):
        config = compose("rl", [*GIVEN, recipe, "environment.segments=1"])
        OmegaConf.resolve(config)
        relations.check("rl", config)


def test_an_environment_of_the_data_is_refused():
    assert "brings an environment of its own" in refusal(relations_of, *GIVEN, "data=environment")


def test_a_command_that_is_not_here_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "there is no program 'nosuch' here" in refusal(
        check_program, "environment=endpoint", "environment.agent=[nosuch]"
    )
    command = f"environment.agent=[{sys.executable},agent.py]"
    assert f"there is no file agent.py in {tmp_path}" in refusal(check_program, "environment=endpoint", command)
    (tmp_path / "agent.py").write_text("")
    config = compose("rl", ["environment=endpoint", command])
    check_program(config)
    assert "programs that you trust" in capsys.readouterr().out
    assert endpoint(config)["agent"] == [sys.executable, str(tmp_path / "agent.py")]
    check_program(compose("rl"))
    assert endpoint(compose("rl")) is None and capsys.readouterr().out == ""


def test_the_keys_are_there_with_the_endpoint_alone():
    with pytest.raises(UserError, match="environment.agent"):
        compose("rl", ["environment.agent=[python]"])
    section = compose("rl", GIVEN).environment
    assert (section.episode_s, section.segments, section.reward) == (400.0, 16, "recipe")
    assert compose("rl", [*GIVEN, "watchdog_minutes=null"]).environment.episode_s == 1800.0
