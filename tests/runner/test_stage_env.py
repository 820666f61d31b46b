"""W&B is told to be silent unless a logger asks for it; then the user's own setting counts."""

from retool_mcore.backends.env import stage_env, worker_env


def test_wandb_is_disabled_unless_it_is_a_logger(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = {"parallel": {"device": "cpu"}, "train": {"loggers": ["console"]}}
    assert stage_env(config)["WANDB_MODE"] == "disabled"
    assert "WANDB_MODE" not in stage_env(config | {"train": {"loggers": ["console", "wandb"]}})
    assert stage_env({"parallel": {"device": "cpu"}})["WANDB_MODE"] == "disabled"  # eval and export have none
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert stage_env(config)["WANDB_MODE"] == "offline"
    assert worker_env({"WANDB_MODE": "offline", "WANDB_DIR": "/x", "WANDB_API_KEY": "k"}) == {
        "WANDB_MODE": "offline",
        "WANDB_DIR": "/x",
    }
