"""What fires, and what the engine does about it before the weights move: Megatron's own step around a stand-in leaf."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from megatron.core.optimizer import ChainedOptimizer
from omegaconf import OmegaConf

from retool_mcore.backends.megatron import guarded_update
from retool_mcore.config import compose
from retool_mcore.state import alarms
from retool_mcore.state.alarms import CHECKS, Alarms, Ended


@pytest.fixture(scope="module")
def defaults():
    return compose("rl", []).alarms


def changed(settings, **changes):
    """changes: {name: {key: value}} over the defaults."""
    return OmegaConf.merge(settings, changes)


def metrics_of(step: int, **data) -> str:
    return json.dumps({"step": step, "data": {name.replace("__", "/"): value for name, value in data.items()}}) + "\n"


@pytest.mark.parametrize(
    ("name", "quiet", "loud"),
    [
        ("nan", {"actor/broken_updates": 0.0}, {"actor/broken_updates": 0.125}),
        ("nan", {"critic/broken_updates": 0.0}, {"critic/broken_updates": 0.5}),
        ("gradient_norm", {"actor/norm_ratio_max": 9.9}, {"actor/norm_ratio_max": 10.1}),
        ("entropy", {"actor/entropy": 0.051}, {"actor/entropy": 0.049}),
        ("mismatch", {"mismatch/kl": 0.009}, {"mismatch/kl": 0.011}),
    ],
)
def test_each_alarm_is_told_in_the_log_the_file_and_the_metrics(defaults, tmp_path, capsys, name, quiet, loud):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/attempt_001.jsonl").write_text(metrics_of(1, actor__entropy=0.5))
    told = changed(defaults, **{name: {"answer": "tell"}})
    watching = Alarms(told, tmp_path, step=1, updates=8)
    assert watching.judge(2, metrics := dict(quiet)) is None and metrics[f"alarm/{name}"] == 0.0
    assert not (tmp_path / "alarms.jsonl").exists() and alarms.count(tmp_path) == ""
    assert watching.judge(3, metrics := dict(loud)) is None and metrics[f"alarm/{name}"] == 1.0
    assert re.search(rf"^alarm: {name} at step 3, 1 in a row: .+; tell$", capsys.readouterr().out, re.MULTILINE)
    (line,) = map(json.loads, (tmp_path / "alarms.jsonl").read_text().splitlines())
    assert (line["step"], line["alarm"], line["answer"]) == (3, name, "tell") and line["value"] != line["bound"]
    assert alarms.count(tmp_path).startswith(f"1 alarm ({name} 1): ")
    ignored = changed(defaults, **{name: {"answer": "ignore"}})
    assert Alarms(ignored, tmp_path, step=1).judge(2, metrics := dict(loud)) is None
    assert f"alarm/{name}" not in metrics


def test_the_updates_are_counted(defaults, tmp_path):
    watching = Alarms(defaults, tmp_path, updates=8)
    watching.judge(1, metrics := {"actor/broken_updates": 0.25, "actor/skipped_updates": 0.25})
    assert metrics["actor/skipped_updates"] == 2 and metrics["alarm/nan"] == 1.0


def test_a_row_is_counted_over_attempts_and_ends_in_the_second_answer(defaults, tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/attempt_001.jsonl").write_text(
        metrics_of(1, alarm__nan=0.0) + metrics_of(2, alarm__nan=1.0) + metrics_of(3, alarm__nan=1.0)
    )
    watching = Alarms(defaults, tmp_path, step=2)  # step 3 is run again
    broken = {"actor/broken_updates": 1.0}
    assert watching.judge(3, metrics := dict(broken)) is None and watching.leads_back
    watching.end_step(3, metrics)
    ended = watching.judge(4, dict(broken))
    assert ended.answer == "back" and "nan at step 4, 3 in a row" in str(ended)
    watching.judge(5, {"actor/broken_updates": 0.0})
    assert not watching.leads_back


def test_the_stricter_of_two_answers_counts(defaults, tmp_path):
    both = changed(defaults, nan={"answer": "back"}, mismatch={"answer": "stop", "then": "stop"})
    found = Alarms(both, tmp_path).judge(1, {"actor/broken_updates": 1.0, "mismatch/kl": 1.0})
    assert found.answer == "stop" and "mismatch" in str(found)


def reward_steps(gain: float, rise: float):
    """Ten steps of noise around a rise of the reward, validated every third."""
    steps = {}
    for step in range(1, 11):
        steps[step] = {"critic/score/mean": 0.1 + rise * step / 10 + 0.02 * (-1) ** step}
        if step % 3 == 1:
            steps[step]["val/accuracy"] = 0.3 + gain * step / 10
    return steps


@pytest.mark.parametrize(
    ("gain", "rise", "fires"), [(0.0, 0.5, True), (-0.1, 0.5, True), (0.1, 0.5, False), (0, 0, False)]
)
def test_a_reward_that_rises_alone(defaults, tmp_path, gain, rise, fires):
    watching = Alarms(defaults, tmp_path)
    for step, data in reward_steps(gain, rise).items():
        watching.judge(step, data, ("reward",))
        watching.end_step(step, data)
        assert data["alarm/reward"] == float(fires and step == 10)


def test_verls_own_accuracy_serves_where_there_is_no_other():
    data = {"val-core/aime/acc/mean@30": 0.2, "val-core/math/acc/mean@30": 0.4, "val-aux/math/acc/std@30": 9.0}
    assert alarms.held_back(data) == pytest.approx(0.3)
    assert alarms.held_back(data | {"val/accuracy": 0.7}) == 0.7 and alarms.held_back({"other": 1.0}) is None


def test_how_often_it_went_back_changes_prompts_and_seeds(tmp_path):
    assert alarms.left_out(tmp_path, 10) == 0 and alarms.request_seed(tmp_path, 1) == 1
    alarms.go_back(tmp_path, 12, 10, 24, "nan")
    alarms.go_back(tmp_path, 13, 10, 30, "nan")
    alarms.go_back(tmp_path, 25, 20, 60, "nan")
    assert [alarms.left_out(tmp_path, step) for step in (0, 10, 20)] == [0, 54, 60]
    assert alarms.request_seed(tmp_path, 1) == 1 + 3 * alarms.RESEED


def test_the_launcher_reads_what_the_trainer_says(tmp_path):
    assert alarms.ended(tmp_path) is None
    alarms.honour(tmp_path, Ended("back", "why"))
    assert (alarms.ended(tmp_path).answer, str(alarms.ended(tmp_path))) == ("back", "why")


class Leaf:
    """One weight under plain gradient descent, as a part of Megatron's ChainedOptimizer."""

    config = SimpleNamespace(clip_grad=0.0, log_num_zeros_in_grad=False, overlap_param_gather_with_optimizer_step=False)

    def __init__(self):
        self.weight, self.gradient, self.steps = 1.0, 0.0, 0

    def prepare_grads(self):
        return False

    def get_grad_norm(self):
        return abs(self.gradient)

    def get_parameters(self):
        return []

    def step_with_ready_grads(self):
        self.weight -= 0.125 * self.gradient
        self.steps += 1
        return True


class Stock:
    """verl's engine around the optimizer: its optimizer_step and train_batch, the model left out."""

    def optimizer_step(self):
        done, norm, _ = self.optimizer.step()
        assert done
        return norm

    def train_batch(self, data, loss_function):
        self.leaf.gradient = data
        return {"metrics": {"grad_norm": self.optimizer_step()}}

    def is_mp_src_rank_with_outputs(self):
        return True


class Guarded(guarded_update.GuardedUpdate, Stock):
    def __init__(self, settings):
        self.leaf = Leaf()
        self.optimizer = ChainedOptimizer.__new__(ChainedOptimizer)
        self.optimizer.chained_optimizers, self.optimizer.config = [self.leaf], Leaf.config
        self.switches = alarms.engine_switches(settings)

    def _switch(self, name):
        return self.switches[name]


@pytest.fixture
def one_rank(monkeypatch):
    monkeypatch.setattr(guarded_update, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(("answer", "kept"), [("skip", True), ("back", True), ("tell", False), ("ignore", False)])
def test_a_broken_gradient_reaches_the_weights_only_where_it_may(one_rank, defaults, broken, answer, kept):
    engine = Guarded(changed(defaults, nan={"answer": answer}, gradient_norm={"answer": "ignore"}))
    engine.train_batch(1.0, None)
    metrics = engine.train_batch(broken, None)["metrics"]
    assert math.isfinite(engine.leaf.weight) is kept and engine.leaf.steps == 2 - kept
    if answer != "ignore":
        assert metrics["broken_updates"].aggregate() == 1 and metrics["skipped_updates"].aggregate() == kept
    engine.train_batch(1.0, None)
    if kept:
        assert engine.leaf.weight == 0.75 and engine.leaf.steps == 2


@pytest.mark.parametrize(("answer", "skipped"), [("skip", 1), ("tell", 0)])
def test_a_spike_is_one_beside_the_median(one_rank, defaults, answer, skipped):
    engine = Guarded(changed(defaults, gradient_norm={"answer": answer}))
    for _ in range(alarms.LEAST - 1):
        assert engine.train_batch(1.0, None)["metrics"]["norm_ratio_max"].aggregate() == 0.0
    assert engine.train_batch(100.0, None)["metrics"]["norm_ratio_max"].aggregate() == 0.0  # too few to say
    weight = engine.leaf.weight
    metrics = engine.train_batch(100.0, None)["metrics"]
    assert metrics["norm_ratio_max"].aggregate() == 100.0 and metrics["skipped_updates"].aggregate() == skipped
    assert (engine.leaf.weight == weight) is bool(skipped)
    assert CHECKS["gradient_norm"](defaults.gradient_norm, {"actor/norm_ratio_max": 100.0}, {}).value == 100.0


def test_one_rank_that_refuses_is_enough(one_rank, defaults, monkeypatch):
    engine = Guarded(defaults)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flags, op: flags.fill_(1))
    engine.train_batch(1.0, None)
    assert engine.leaf.steps == 0 and engine.leaf.weight == 1.0
