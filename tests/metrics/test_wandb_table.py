"""W&B offline, for real: scalars, the configuration and a table of trajectories lie in RUN/STAGE/wandb."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from verl.utils.tracking import Tracking
from retool_mcore.metrics.text import TABLE, table
tracking = Tracking("retool", "mine", ["wandb"], {"trainer": {}, "train": {"lr": 0.5}})
record = dict.fromkeys(TABLE, 1) | {"prompt_ids": [7, 8], "response_ids": [9]}
wandb = tracking.logger["wandb"]
wandb.log({"trajectories": wandb.Table(TABLE, table([record], lambda ids: " ".join(map(str, ids))))}, step=3)
tracking.log({"reward/accuracy": 0.25}, step=3)
tracking.finish()
"""


def test_an_offline_run_holds_scalars_configuration_and_trajectories(tmp_path):
    pytest.importorskip("wandb")
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (table,) = (run / "files" / "media" / "table").glob("trajectories*.json")
    found = json.loads(table.read_text())
    assert found["columns"][-2:] == ["prompt", "response"] and found["data"][0][-2:] == ["7 8", "9"]
    (log,) = run.glob("run-*.wandb")
    raw = log.read_bytes()
    assert b"reward/accuracy" in raw and b"0.25" in raw and b"train" in raw and b'"lr"' in raw
