"""A recorded step again: by the trainer without a rollout engine, and by the engine without a trainer."""

import json

import pytest
from e2e_runs import retool, succeed

# Of the machine's threads and the order of sums; the step itself is the same arithmetic.
SAME = 1e-4
TRAINED = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean", "mismatch/mean", "mismatch/max")


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_step_is_repeated_by_either_half(fork_of_cold_start):
    run = succeed("rl", fork_of_cold_start)
    done = retool("replay", str(run), "--step", "2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    metrics = json.loads((run / "replay/step_000002/trainer/metrics.json").read_text())
    recorded, replayed = metrics["recorded"], metrics["replayed"]
    for name in TRAINED:
        assert replayed[name] == pytest.approx(recorded[name], rel=SAME, abs=1e-6), name
    assert "vLLMHttpServer" not in (run / "replay/step_000002/trainer/log.txt").read_text()

    done = retool("replay", str(run), "--step", "2", "--rollout")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((run / "replay/step_000002/rollout/rollout.json").read_text())
    assert result["trajectories"] == 16 and result["same"] >= 14, result
