"""The best policy where a user meets it: the words of eval and export, the table, the checks of the options."""

import json

from retool_mcore.cli.summary import rows
from retool_mcore.config import compose, policy_path
from retool_mcore.runner.launch import stage_dir


def test_its_words_name_links_in_the_run():
    assert policy_path("rl-best", "model", "/r") == "/r/rl/policy_best"
    assert policy_path("sft-best", "model", "/r") == "/r/sft/policy_best"
    assert policy_path("rl", "model", "/r") == "/r/rl/policy"


def test_its_evaluation_has_a_folder_and_a_row_of_its_own(tmp_path):
    config = compose("eval", ["policy=rl-best", f"runs_dir={tmp_path}", "name=r"])
    assert config.policy_path == f"{tmp_path}/r/rl/policy_best"
    folder = stage_dir("eval", config)
    assert folder == tmp_path / "r/eval/rl-best"
    folder.mkdir(parents=True)
    assert "best of RL" not in [row[0] for row in rows(tmp_path / "r")[1]]
    (folder / "metrics.json").write_text(json.dumps({"accuracy": {"x": {"mean@1": 0.5}}, "behaviour": {"x": {}}}))
    assert ["best of RL", "50.0 %"] in [row[:2] for row in rows(tmp_path / "r")[1]]
