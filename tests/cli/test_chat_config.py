"""`retool chat` takes a run's newest policy with the settings that it was trained with, or a model's folder."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.cli import main
from retool_mcore.cli.chat import chat_config
from retool_mcore.config import compose
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError


@pytest.fixture
def run(tmp_path):
    """A run whose SFT has a whole checkpoint and whose RL has begun; its prompt and limits are its own."""
    run = tmp_path / "mine"
    words = [f"runs_dir={tmp_path}", "name=mine", "rollout.max_response_tokens=200", "data.prompt='Say {question}'"]
    for stage in ("sft", "rl"):
        config = compose(stage, words if stage == "rl" else [word for word in words if "response" not in word])
        (run / stage).mkdir(parents=True)
        (run / stage / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    whole(run, "sft", 3)
    return run


def whole(run, stage, step):
    folder = run / stage / "checkpoints" / f"global_step_{step}"
    (folder.parent / f"global_step_{step}").mkdir(parents=True)
    policy = folder / ("actor/model/huggingface" if stage == "rl" else "model/huggingface")
    make_tiny_model(policy, seed=1)
    (folder / "COMPLETE").touch()
    return policy


def test_the_newest_policy_answers_with_what_it_was_trained_with(run):
    config = chat_config(run, [])
    assert config.policy == "sft" and "global_step_3" in config.policy_path
    assert config.data.prompt == "Say {question}" and config.rollout.max_response_tokens == 200
    whole(run, "rl", 5)
    assert chat_config(run, []).policy == "rl"
    assert chat_config(run, ["policy=sft", "rollout.max_response_tokens=250"]).rollout.max_response_tokens == 250


def test_a_models_folder_answers_alone(tmp_path):
    model = make_tiny_model(tmp_path / "model", seed=1)
    assert chat_config(model, []).policy_path == str(model)


def test_what_is_neither_is_refused_in_a_sentence(tmp_path, capsys):
    for target, said in ((tmp_path / "no", "is not there"), (tmp_path, "neither a run whose SFT or RL has begun nor")):
        with pytest.raises(UserError, match=said):
            chat_config(target, [])
    assert main.main(["chat", str(tmp_path)]) == 2
    assert "retool: " in capsys.readouterr().err
