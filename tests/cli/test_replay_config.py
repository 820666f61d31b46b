import json

import pytest
from omegaconf import OmegaConf

from retool_mcore.cli.replay import refuse_tools, replay_config, report_trainer
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import write_step
from retool_mcore.tools.toolbox import CODE


@pytest.fixture
def run(tmp_path):
    """A run whose steps 1 to 3 are recorded, with whole checkpoints of steps 1 and 3."""
    record = {"response_ids": [1], "prompt_ids": [1]}
    for step in (1, 2, 3):
        write_step(tmp_path / "rl/trajectories", step, [record | {"uid": uid} for uid in ("a", "a", "b")])
    for step in (1, 3):
        folder = tmp_path / f"rl/checkpoints/global_step_{step}"
        (folder / "actor/model/huggingface").mkdir(parents=True)
        (folder / "COMPLETE").touch()
    config = OmegaConf.create(
        {
            "run_dir": "/x/t",
            "init_from": "/x/t/sft",
            "rollout": {"temperature": 0.5, "top_p": 1.0},
            "train": {"lr": 1.0},
        }
    )
    (tmp_path / "rl/config.yaml").write_text(OmegaConf.to_yaml(config))
    return tmp_path


def test_a_step_begins_with_the_policy_before_it(run):
    first, second = replay_config(run, 1, None), replay_config(run, 2, None)
    assert first.replay.checkpoint is None and first.policy_path == f"{run}/sft"
    assert second.replay.checkpoint == str(run / "rl/checkpoints/global_step_1")
    assert second.policy_path == f"{second.replay.checkpoint}/actor/model/huggingface"
    assert second.replay.groups == 2 and second.temperature == 0.5


def test_what_is_not_there_is_refused(run):
    with pytest.raises(UserError, match=r"policy of step 2, whose checkpoint is not there.* 0, 1, 3\."):
        replay_config(run, 3, None)
    assert replay_config(run, 3, 1).replay.checkpoint.endswith("global_step_1")
    with pytest.raises(UserError, match="no trajectories of step 4: it has 1, 2, 3"):
        replay_config(run, 4, None)
    with pytest.raises(UserError, match="holds no trajectories"):
        replay_config(run / "rl", 1, None)


def test_a_rollout_with_other_tools_than_code_is_refused():
    for use in ([{"path": CODE}], None):
        refuse_tools(OmegaConf.create({"toolbox": {"use": use}}))
    refuse_tools(OmegaConf.create({}))  # recorded before there were other tools
    with pytest.raises(UserError, match=r"this run has a\.B: replay the step without --rollout"):
        refuse_tools(OmegaConf.create({"toolbox": {"use": [{"path": CODE}, {"path": "a.B"}]}}))


def test_overrides_change_what_the_run_has_and_nothing_else(run):
    assert replay_config(run, 1, None, ["train.lr=2.5"]).train.lr == 2.5
    for wrong in ("train.rate=1", "train.lr"):
        with pytest.raises(UserError, match="expected KEY=VALUE"):
            replay_config(run, 1, None, [wrong])


def test_the_report_counts_what_differs_and_leaves_times_out(run, capsys):
    (run / "metrics").mkdir()
    data = {"actor/pg_loss": 0.5, "actor/grad_norm": 1.0, "timing_s/step": 9.0}
    (run / "metrics/attempt_001.jsonl").write_text(json.dumps({"step": 2, "data": data}) + "\n")
    report_trainer(run, 2, {"actor/pg_loss": 0.5, "actor/grad_norm": 1.01, "timing_s/step": 3.0})
    out = capsys.readouterr().out
    assert "1 of 2 metrics" in out and "others: actor/grad_norm" in out
    assert json.loads((run / "metrics.json").read_text())["replayed"] == data
