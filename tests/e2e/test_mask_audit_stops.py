"""A run whose mask is shifted by one token is stopped before its first update, with the trajectory named."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from e2e_runs import SMALL, metrics_of

from retool_mcore.config import compose
from retool_mcore.metrics.records import read_step
from retool_mcore.runner import launch
from retool_mcore.state import checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SENTENCE = re.compile(
    r"The mask audit stops the run before the update: an interpreter token has weight in the loss, "
    r"trajectory (?P<uid>\S+)_(?P<sample>\d+) of step 1 \(in (?P<path>\S+); [^)]+\), response token (?P<token>\d+)\."
)


def test_a_shifted_mask_stops_at_step_1(fork_of_cold_start):
    here = Path(__file__).parent
    config = compose("rl", ["name=t", f"runs_dir={fork_of_cold_start}", *SMALL])
    with pytest.raises(launch.StageFailed) as stopped:
        launch.run_attempt(
            "rl", config, command=lambda path: [sys.executable, str(here / "shifted_mask.py"), str(path)]
        )
    found = SENTENCE.search(str(stopped.value))
    assert found, stopped.value
    (record,) = read_step(found["path"])
    assert (record["uid"], record["sample"], record["step"]) == (found["uid"], int(found["sample"]), 1)
    policy = np.zeros(len(record["response_ids"]), bool)
    for span in record["spans"]:
        policy[span["start"] : span["end"]] = span["kind"] == "policy"
    assert np.flatnonzero(record["response_mask"] & ~policy)[0] == int(found["token"])
    assert not metrics_of(fork_of_cold_start / "t/rl")
    assert checkpoints.latest(fork_of_cold_start / "t/rl/checkpoints") is None
