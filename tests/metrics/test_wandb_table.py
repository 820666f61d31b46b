"""W&B offline, for real: scalars, the configuration and a table of trajectories lie in RUN/STAGE/wandb."""

import json

import pytest
from verl.utils.tracking import Tracking

from retool_mcore.metrics.charts import Overview
from retool_mcore.metrics.text import TABLE, table


def test_an_offline_run_holds_scalars_configuration_and_trajectories(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    tracking = Tracking("retool", "mine", ["wandb"], {"trainer": {}, "train": {"lr": 0.5}})
    record = dict.fromkeys(TABLE, 1) | {"prompt_ids": [7, 8], "response_ids": [9]}
    wandb = tracking.logger["wandb"] = Overview(tracking.logger["wandb"], "rl")
    wandb.log({"trajectories": wandb.Table(TABLE, table([record], lambda ids: " ".join(map(str, ids))))}, step=3)
    tracking.log({"reward/accuracy": 0.25, "timing_s/step": 7.0}, step=3)
    tracking.finish()
    wandb.teardown()  # its process has written the file once it has ended
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (table_file,) = (run / "files" / "media" / "table").glob("trajectories*.json")
    found = json.loads(table_file.read_text())
    assert found["columns"][-2:] == ["prompt", "response"] and found["data"][0][-2:] == ["7 8", "9"]
    (log,) = run.glob("run-*.wandb")
    raw = log.read_bytes()
    assert b"1 overview/time by phase, whole step" in raw
    assert b"1 overview/accuracy, training" in raw and b"1 overview/entropy" not in raw
    assert b"reward/accuracy" in raw and b"0.25" in raw and b"train" in raw and b'"lr"' in raw
