"""SFT's checkpoints without what only a resumed SFT reads, once RL has one of its own."""

import os

import pytest
from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.runner import launch
from retool_mcore.runner.inputs import settle_policy
from retool_mcore.state import checkpoints
from retool_mcore.state.checkpoints import best, complete, is_thinned, rotate, rotation, step_of, thin_out

POLICY = ("config.json", "model.safetensors", "adapter/lora.json")
RESUME = ("optimizer/dist_ckpt/__0_0.distcp", "extra/dist_ckpt/common.pt", "model/dist_ckpt/x", "data_0.pt", "a.json")


def saved(stage_dir, step, inner=""):
    folder = checkpoints.folder_of(stage_dir / "checkpoints", step)
    files = [*(f"{inner}model/huggingface/{name}" for name in POLICY), *(f"{inner}{name}" for name in RESUME)]
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"0" * 100)
    checkpoints.mark_complete(folder)
    return folder


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def run(tmp_path):
    for step in (1, 2, 3):
        saved(tmp_path / "sft", step)
    (tmp_path / "sft" / "COMPLETE").touch()
    return tmp_path


def test_policies_stay_and_nothing_else(run):
    assert checkpoints.superfluous_bytes(run / "sft") == 3 * len(RESUME) * 100
    before = os.readlink(run / "sft" / "policy")
    for _ in range(2):
        thin_out(run / "sft")
        assert [step_of(path) for path in complete(run / "sft" / "checkpoints")] == [1, 2, 3]
        for folder in complete(run / "sft" / "checkpoints"):
            wanted = ["COMPLETE", "THINNED", *(f"model/huggingface/{name}" for name in POLICY)]
            assert files(folder) == sorted(wanted) and is_thinned(folder)
    assert os.readlink(run / "sft" / "policy") == before and checkpoints.superfluous_bytes(run / "sft") == 0


def test_a_stage_that_is_not_at_its_end_keeps_all(run):
    (run / "sft" / "COMPLETE").unlink()
    thin_out(run / "sft")
    assert not any(map(is_thinned, complete(run / "sft" / "checkpoints")))
    assert checkpoints.superfluous_bytes(run / "sft") == 0


def test_the_folder_of_an_rl_checkpoint_is_thinned_alike(tmp_path):
    folder = saved(tmp_path / "rl", 4, "actor/")
    (folder / "critic").mkdir()
    (tmp_path / "rl" / "COMPLETE").touch()
    thin_out(tmp_path / "rl")
    assert {name.split("/")[0] for name in files(folder)} == {"COMPLETE", "THINNED", "actor"}
    assert not (folder / "critic").exists() and not (folder / "actor" / "optimizer").exists()


@pytest.mark.parametrize("asked", [True, False])
def test_rl_thins_sft_with_its_first_whole_checkpoint(run, asked):
    train = {"keep_checkpoints": 2, "keep_best": None, "best_is": "highest", "thin_sft": asked}
    rotate(run / "rl", **rotation(train))
    assert not any(map(is_thinned, complete(run / "sft" / "checkpoints"))), "RL has none of its own"
    saved(run / "rl", 1, "actor/")
    rotate(run / "rl", **rotation(train))
    assert all(is_thinned(path) == asked for path in complete(run / "sft" / "checkpoints"))
    assert not any(map(is_thinned, complete(run / "rl" / "checkpoints")))
    rotate(run / "sft", **rotation({key: train[key] for key in ("keep_checkpoints", "keep_best", "best_is")}))
    assert best(run / "sft" / "checkpoints") is None


def test_sft_is_not_resumed_from_there_and_its_policy_is_found(run):
    (run / "sft" / "config.yaml").write_text("{}")
    thin_out(run / "sft")
    config = OmegaConf.create({"run_dir": str(run), "train": {}})
    with pytest.raises(UserError, match=r"global_step_3 has no optimizer any more .* another name="):
        launch.kept_values("sft", config)
    config = OmegaConf.create({"run_dir": str(run), "policy": "sft", "policy_path": str(run / "sft" / "policy")})
    for stage in ("eval", "export"):
        settle_policy(stage, config)
        assert config.policy_path == str(run / "sft" / "checkpoints/global_step_3/model/huggingface")
