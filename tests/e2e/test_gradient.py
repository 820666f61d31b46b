"""The mask where it counts: in the gradient of the real Megatron loss, under TP=2 with sequence parallelism, PP=2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retool_mcore.data.tiny_model import make_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)], ids=["TP=2", "PP=2"])
def test_only_policy_tokens_reach_the_gradient(tp, pp, tmp_path):
    """Changing an interpreter token's label or advantage leaves every gradient bitwise alike; a policy token's not.

    And a NaN gradient is kept from weights and optimizer by alarms.nan, which stock Megatron lets through.
    """
    model, output = make_tiny_model(tmp_path / "model", seed=1), tmp_path / "result.json"
    probe = Path(__file__).with_name("gradient_probe.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(probe), str(model), str(tp), str(pp), str(output)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(output.read_text())
    assert result["repeats"] and result["nonzero"]
    policy = [bool(bit) for bit in result["mask"]]
    assert result["label"] == policy
    assert result["advantage"] == policy
    update = result["update"]
    assert update["skipped"] == [0, 1, 0, None] and update["kept"] and update["went_on"] and update["finite"]
    assert update["spoilt_without"]
