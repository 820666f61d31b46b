"""What a stage starts from is what was asked for, and what is complete is what was asked for."""

import pytest
from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.runner.inputs import check_start
from retool_mcore.state import checkpoints


def whole(stage_dir, step):
    folder = stage_dir / f"checkpoints/global_step_{step}"
    (folder / "model/huggingface").mkdir(parents=True)
    checkpoints.mark_complete(folder)
    return folder


@pytest.mark.parametrize("link", ["policy", "policy_best"])
def test_rl_starts_from_no_sft_that_has_not_ended(tmp_path, link):
    checkpoint = whole(tmp_path / "sft", 20)
    if link == "policy_best":
        (tmp_path / "sft/policy_best").symlink_to(checkpoints.policy_folder(checkpoint))
    config = OmegaConf.create({"run_dir": str(tmp_path), "init_from": f"{tmp_path}/sft/{link}"})
    with pytest.raises(UserError) as refused:
        check_start("rl", config)
    words = "step 20 of sft, which has not come to its end: run `retool sft` until it is complete, or give init_from="
    assert words in str(refused.value) and "\n" not in str(refused.value)
    named = OmegaConf.create({**config, "init_from": str(checkpoints.policy_folder(checkpoint))})
    check_start("rl", named)  # the checkpoint itself is asked for
    (tmp_path / "sft/COMPLETE").touch()
    check_start("rl", config)
    (tmp_path / "sft/COMPLETE").unlink()
    whole(tmp_path / "rl", 1)
    check_start("rl", config)  # it goes on from its own checkpoint
