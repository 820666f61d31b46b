"""Validation inside the loop, with a stand-in for the engines: which checkpoint is the best, and when a run ends."""

import json

import pytest
from played_loop import Engines, Log, attempt, settings

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.rollout.seeds import request_seed
from retool_mcore.state import checkpoints, stop
from retool_mcore.state.progress import read_steps

PROBLEMS, SAMPLES = 4, 4


class Scripted(Engines):
    """right: correct samples of each problem at the validation of a step; training: the accuracy of a step's own."""

    def __init__(self, right, training=(), asks=lambda step: None):
        super().__init__()
        self.right, self.training, self.asks, self.ran = right, dict(training), asks, []

    def sample(self, group, number):
        made = super().sample(group, number)
        if group.uid.startswith("val"):
            made.outcome["acc"] = float(number < self.right[self.version])
        elif self.training:
            made.outcome["acc"] = self.training[group.step]
        return made

    def update(self, batch):
        self.ran.append(self.version + 1)
        self.asks(self.version + 1)
        return {"actor/grad_norm": 0.5}


class File(Log):
    """A log that also writes the file of an attempt's metrics."""

    def __init__(self, folder):
        super().__init__()
        (folder / "metrics").mkdir(parents=True, exist_ok=True)
        self.file = folder / f"metrics/attempt_{len(list((folder / 'metrics').iterdir())) + 1:03d}.jsonl"

    def log(self, data, step):
        super().log(data, step)
        with self.file.open("a") as out:
            out.write(json.dumps({"step": step, "data": data}, default=float) + "\n")


def one_attempt(folder, patch, right, *, training=(), steps=12, save=2, every=2, limit=None, stop_at=0):
    """RL to its end or stop. Returns the steps run."""
    stop.clear(folder)
    engines = Scripted(right, training, lambda step: stop.request(folder) if step == stop_at else None)
    rotation = checkpoints.rotation(compose("rl", ["data=math", "train.keep_checkpoints=1"]).train)
    cfg = settings(
        steps=steps, save_every=save, validate_every=every, validation_n=SAMPLES, stop_after_worse=limit
    )  # fmt: skip
    try:
        attempt(folder, patch, cfg, engines, rows=PROBLEMS, log=File(folder), rotation=rotation)
    except stop.StopRequested as stopped:
        stop.honour(folder, stopped.step)
    return engines.ran


def test_the_best_is_what_the_policy_of_the_checkpoint_can_do(tmp_path, monkeypatch):
    """Training accuracy is of the policy before the update, on the prompts that were drawn: it peaks elsewhere."""
    right = {2: 1, 4: 3, 6: 2, 8: 2}
    training = {step: 0.1 * step for step in range(1, 9)}
    one_attempt(tmp_path, monkeypatch, right, training=training, steps=8)
    found = checkpoints.best(tmp_path / "checkpoints")
    assert found == {"metric": "val/accuracy", "value": 0.75, "step": 4, "se": 0.0}
    assert checkpoints.policy_step(tmp_path / "policy_best") == 4
    assert [checkpoints.step_of(path) for path in checkpoints.complete(tmp_path / "checkpoints")] == [4, 8]
    logged = read_steps(tmp_path)
    assert {step: data["val/accuracy"] for step, data in logged.items() if "val/accuracy" in data} == {
        step: count / SAMPLES for step, count in right.items()
    }
    for step in right:
        assert logged[step]["val/seconds"] >= 0 and 0 <= logged[step]["val/share"] <= 1
        assert logged[step]["val/failed"] == 0 and logged[step]["val/made/accuracy"] == right[step] / SAMPLES


def test_a_checkpoint_that_was_not_validated_is_never_the_best(tmp_path, monkeypatch):
    """As one that a requested stop saves: its steps of another attempt may still be in the metrics files."""
    right = {2: 1, 4: 1, 6: 4, 8: 2}
    assert one_attempt(tmp_path, monkeypatch, right, steps=8, stop_at=6) == [1, 2, 3, 4, 5, 6]
    assert stop.stopped_after(tmp_path) == 6
    assert "val/accuracy" not in read_steps(tmp_path)[6], "whoever asked for a stop has minutes"
    assert checkpoints.best(tmp_path / "checkpoints")["step"] == 4
    assert one_attempt(tmp_path, monkeypatch, right, steps=8) == [7, 8]
    assert checkpoints.best(tmp_path / "checkpoints") == {"metric": "val/accuracy", "value": 0.5, "step": 8, "se": 0.0}


def test_an_early_stop_is_an_end_with_the_last_policy_and_the_best(tmp_path, monkeypatch, capsys):
    right = {2: 1, 4: 3, 6: 2, 8: 3, 10: 1, 12: 4}
    assert one_attempt(tmp_path, monkeypatch, right, limit=2) == list(range(1, 9))  # equal at 8: not better
    assert "RL ends with step 8: 2 validations in a row were not better" in capsys.readouterr().out
    assert stop.stopped_after(tmp_path) is None, "an end, not a pause"
    assert checkpoints.policy_step(checkpoints.link_policy(tmp_path)) == 8
    assert checkpoints.best(tmp_path / "checkpoints")["step"] == 8  # of equal values the later
    assert [read_steps(tmp_path)[step]["val/worse_in_a_row"] for step in (2, 4, 6, 8)] == [0, 0, 1, 2]


def test_an_early_stop_between_two_saves_makes_one_step_more(tmp_path, monkeypatch):
    right = dict.fromkeys(range(1, 13), 2)
    assert one_attempt(tmp_path, monkeypatch, right, save=6, every=1, limit=3) == [1, 2, 3, 4, 5]
    assert checkpoints.step_of(checkpoints.latest(tmp_path / "checkpoints")) == 5
    assert "val/accuracy" in read_steps(tmp_path)[5]
    assert one_attempt(tmp_path / "unsaved", monkeypatch, right, save=-1, every=1, limit=3) == [1, 2, 3, 4]


def test_an_early_stop_counts_over_attempts(tmp_path, monkeypatch):
    right = {2: 3, 4: 2, 6: 2, 8: 2, 10: 2}
    assert one_attempt(tmp_path, monkeypatch, right, limit=3, stop_at=5) == [1, 2, 3, 4, 5]
    assert one_attempt(tmp_path, monkeypatch, right, limit=3) == [6, 7, 8]


def test_without_a_limit_steps_decide(tmp_path, monkeypatch):
    assert one_attempt(tmp_path, monkeypatch, {step: 1 for step in range(2, 13, 2)})[-1] == 12


def test_no_seed_of_training_is_one_of_validations():
    """Whose requests are all of step 0; training begins at step 1."""
    seeds = {request_seed(1, 0, index, sample, 0) for index in range(20) for sample in range(16)}
    trained = {request_seed(1, step, i, sample, 0) for step in (5, 10) for i in range(20) for sample in range(16)}
    assert not seeds & trained


@pytest.mark.parametrize(("limit", "ends"), [(0.5, False), (0.2, True)])
def test_what_the_sandbox_spoilt_is_reported_and_an_outage_ends_the_run(tmp_path, monkeypatch, capsys, limit, ends):
    class Spoilt(Scripted):
        def sample(self, group, number):
            made = super().sample(group, number)
            if group.uid.startswith("val") and number == 0:
                made.finish = "sandbox_error"
                made.notes["calls"][0] |= {"status": "sandbox_error", "stderr": "no service ran it"}
            return made

    cfg = settings(steps=1, validate_every=1, validation_n=4, sandbox_errors=limit)
    if ends:
        with pytest.raises(UserError, match="the sandbox itself failed in 4 of 16 trajectories"):
            attempt(tmp_path, monkeypatch, cfg, Spoilt({1: 2}), rows=PROBLEMS)
    else:
        attempt(tmp_path, monkeypatch, cfg, Spoilt({1: 2}), rows=PROBLEMS)
        assert "validation at step 1: 4 of 16 lost to the sandbox (no service ran it)" in capsys.readouterr().out


def test_what_a_save_took_is_reported_though_the_next_step_saves_too(tmp_path, monkeypatch):
    _, log = attempt(tmp_path, monkeypatch, settings(steps=4), Engines())
    assert any("checkpoint/bytes" in values for values in log.steps.values())
