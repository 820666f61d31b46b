"""A training that reads `init_from` again at every start goes on only where it holds what it held."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.runner import launch as launching
from retool_mcore.runner.began_with import lies_on
from retool_mcore.runner.launch import kept_values, run_attempt
from retool_mcore.state import checkpoints


@pytest.mark.parametrize(
    ("stage", "overrides", "expected"),
    [
        ("rl", [], ""),
        ("rl", ["recipe=grpo"], "KL reference"),
        ("rl", ["recipe=otc"], "KL reference"),
        ("rl", ["recipe=tool_n1"], "KL reference"),
        ("rl", ["verl.algorithm.use_kl_in_reward=true"], "KL reference"),
        ("rl", ["verl.actor_rollout_ref.actor.use_kl_loss=true"], "KL reference"),
        ("rl", ["model.lora.rank=4"], "adapters"),
        ("rl", ["recipe=grpo", "model.init=random"], ""),
        ("sft", [], ""),
        ("sft", ["model.lora.rank=4"], "adapters"),
    ],
)
def test_what_lies_on_the_weights_of_init_from(stage, overrides, expected):
    found = lies_on(stage, compose(stage, overrides))
    assert expected in found and bool(expected) == bool(found)


def config(run: Path, **recipe):
    return OmegaConf.create(
        {
            "run_dir": str(run),
            "parallel": {"device": "cpu", "nodes": 1, "gpus_per_node": 1},
            "model": {"init": "checkpoint", "lora": {"rank": 0}},
            "init_from": str(run / "sft/policy"),
            "recipe": recipe,
        }
    )


def write(run: Path, value: float) -> None:
    (run / "sft/policy").mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.full((4,), value)}, run / "sft/policy/model.safetensors")


@pytest.mark.parametrize("kl_loss", [True, False])
def test_a_kl_reference_does_not_move_with_its_link(tmp_path, monkeypatch, kl_loss):
    monkeypatch.setattr(launching, "stage_command", lambda *_: ["true"])
    made, checkpoint = config(tmp_path, kl_loss=kl_loss), tmp_path / "rl/checkpoints/global_step_2"
    write(tmp_path, 1.0)
    run_attempt("rl", made)
    assert (tmp_path / "rl/initial_weights.json").exists() == kl_loss
    write(tmp_path, 2.0)  # no checkpoint yet: the run begins anew
    run_attempt("rl", made)
    checkpoints.policy_folder(checkpoint).mkdir(parents=True)
    (checkpoint / checkpoints.MARK).touch()
    assert kept_values("rl", made).startswith("from step 2")
    write(tmp_path, 3.0)
    complete = (tmp_path / "rl/COMPLETE").read_text()
    if kl_loss:
        with pytest.raises(UserError, match="the KL reference of this run is based on other weights than .*sft/policy"):
            run_attempt("rl", made)
        assert (tmp_path / "rl/COMPLETE").read_text() == complete, "nothing of the attempts before is touched"
    else:
        run_attempt("rl", made)


def test_a_run_of_an_older_version_is_pinned_from_now_on(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "stage_command", lambda *_: ["true"])
    made, checkpoint = config(tmp_path, kl_loss=True), tmp_path / "rl/checkpoints/global_step_2"
    write(tmp_path, 1.0)
    run_attempt("rl", made)
    (tmp_path / "rl/initial_weights.json").unlink()
    checkpoints.policy_folder(checkpoint).mkdir(parents=True)
    (checkpoint / checkpoints.MARK).touch()
    run_attempt("rl", made)
    write(tmp_path, 2.0)
    with pytest.raises(UserError, match="other weights"):
        run_attempt("rl", made)
