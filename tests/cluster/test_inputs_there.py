"""A job whose data or policy is missing is refused before it is queued, as far as the login node can see."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from retool_mcore.cluster import inputs_there
from retool_mcore.cluster.site import Container, Site
from retool_mcore.errors import UserError

HERE = Site("default", venv=".venv")


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """`inputs_there.check` of a stage of a run in tmp_path; files of data only have to be there."""
    monkeypatch.setattr(inputs_there, "check_sft", exists)
    monkeypatch.setattr(inputs_there, "check_rl", exists)
    monkeypatch.setattr(inputs_there, "validation_sets", lambda _: [])
    monkeypatch.setattr(inputs_there, "read_model", lambda folder, weights: exists(folder / "config.json"))
    run, model = tmp_path / "run", tmp_path / "model"

    def check(stage, site=HERE, earlier=(), unknown=False, **values):
        data = {name: str(run / "data" / name) for name in ("sft_train_files", "sft_validation_files", "train_files")}
        config = {"run_dir": str(run), "model": {"init": "checkpoint"}, "data": data}
        config |= {"sft": {"init_from": str(model)}, "rl": {"init_from": str(run / "sft" / "policy")}}.get(stage, {})
        if stage in ("eval", "export"):
            config |= {"policy": "rl", "policy_path": str(run / "rl" / "policy")}
            data["validation_files"] = str(run / "data" / "test")
        return inputs_there.check(stage, OmegaConf.create(config | values), site, earlier, unknown)

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")

    return check, make


def exists(path):
    if not Path(path).is_file():
        raise UserError(f"data file {path} does not exist.")


def test_a_run_without_data_and_model_is_refused(checked):
    check, make = checked
    with pytest.raises(UserError, match="init_from points to .*/model, which is not a folder: give the folder of"):
        check("sft")
    make("model/config.json")
    with pytest.raises(UserError, match="data file .*sft_train_files does not exist"):
        check("sft")
    make("run/data/sft_train_files", "run/data/sft_validation_files")
    assert check("sft") == ""


def test_what_an_earlier_stage_writes_need_not_be_there(checked):
    check, make = checked
    with pytest.raises(UserError, match="submit `sft rl` in one chain, or with --after sft"):
        check("rl")
    with pytest.raises(UserError, match="data file .*train_files"):
        check("rl", earlier=["sft"])
    make("run/data/train_files")
    assert check("rl", earlier=["sft"]) == ""
    with pytest.raises(UserError, match="submit export behind the stage that makes it, as in `rl export`"):
        check("export", earlier=["sft"])
    assert check("export", earlier=["sft", "rl"]) == ""
    with pytest.raises(UserError, match="data file .*test"):
        check("eval", earlier=["rl"])
    assert check("eval", earlier=["rl"], prepare=[{"path": "x"}]) == ""


def test_behind_a_job_that_only_has_a_number_the_runs_folder_may_change(checked):
    check, _ = checked
    assert check("rl", unknown=True) == check("eval", unknown=True) == ""
    with pytest.raises(UserError, match="init_from points to"):
        check("sft", unknown=True)


def test_what_this_node_may_not_see_is_told_and_not_refused(checked, tmp_path):
    check, make = checked
    make("run/data/sft_train_files", "run/data/sft_validation_files")
    assert check("sft", init_from="/no-such-storage/models/m") == "/no-such-storage/models/m"
    image = Site("box", container=Container("apptainer", "x.sif"))
    assert check("sft", image) == f"{tmp_path}/model"
    assert check("sft", Site("disks", venv="v", scratch=str(tmp_path))) == f"{tmp_path}/model"
    cached = Site("caches", venv="v", env={"HF_HOME": "/scratch/hf"})
    assert check("sft", cached, init_from="Qwen/Qwen2.5-32B-Instruct") == "Qwen/Qwen2.5-32B-Instruct"
    with pytest.raises(UserError, match="hf download"):
        check("sft", init_from="nobody/has-this-model")


def test_a_stage_that_is_half_trained_is_no_start(checked, tmp_path):
    check, make = checked
    policy = tmp_path / "run/sft/checkpoints/global_step_4/model/huggingface"
    make("run/data/train_files", "run/sft/checkpoints/global_step_4/COMPLETE")
    policy.mkdir(parents=True)
    (policy / "config.json").write_text(json.dumps({}))
    (tmp_path / "run/sft/policy").symlink_to(policy)
    with pytest.raises(UserError, match="has not come to its end"):
        check("rl")
    assert check("rl", earlier=["sft"]) == ""
