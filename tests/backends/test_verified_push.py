"""Which pushes are verified, and that each kind of transport's is: verl's worker and engines as stand-ins in memory."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import torch
from played_loop import settings
from verl.workers.engine_workers import ActorRolloutRefWorker

from retool_mcore.backends.verl import engines
from retool_mcore.backends.verl.engines import Engines
from retool_mcore.backends.verl.fingerprint import Whole, difference, fingerprint
from retool_mcore.backends.verl.weight_sync import PushError, VerifyingWorker, exported_once
from retool_mcore.train.run import Run

STOPS = "The weight push stops the run"  # of backends/verl/weight_sync_vllm.py, which imports vLLM


class Holder:
    """An engine: keeps what is pushed, with one element wrong at push number `wrong`."""

    def __init__(self, wrong: int):
        self.wrong, self.pushes, self.held, self.compared = wrong, 0, {}, 0
        self.collective_rpc = SimpleNamespace(remote=lambda method, kwargs: self.verify(**kwargs))

    def load(self, weights) -> None:
        self.pushes += 1
        self.held = {name: weight.clone() for name, weight in weights}
        if self.pushes == self.wrong:
            self.held["norm"][1] += 1e-6

    async def _execute_method(self, method, kwargs):
        assert method == "verify_weights"
        return self.verify(**kwargs)

    def verify(self, exported, dtype):
        self.compared, self.exported = self.compared + 1, json.loads(exported)
        own = {name: Whole(w.numel(), int(fingerprint(w.to(getattr(torch, dtype))))) for name, w in self.held.items()}
        found = difference({name: Whole(*value) for name, value in self.exported.items()}, own)
        if found:
            raise RuntimeError(f"{STOPS}: {found}.")


class Group:
    """The trainer's worker group: one worker, called here instead of by Ray."""

    def __init__(self, worker):
        self.worker = worker

    def record_push(self):
        return [self.worker.record_push()]

    def recorded_push(self):
        return [self.worker.recorded_push()]

    def verify_push(self):
        return [asyncio.run(self.worker.verify_push())]


class Pushing(Engines):
    """Engines that share the trainer's devices (naive), or have their own (host)."""

    def __init__(self, mode, worker, engine, push):
        self.apart, self.partial = mode == "host", False
        self.workers, self.transport = Group(worker), SimpleNamespace(update_weights=push)
        self.servers = SimpleNamespace(server_handles=[engine])
        self.pushes_verified, self.verified = 0, {}


@pytest.fixture(params=["naive", "host"])
def made(request, monkeypatch):
    """(engines, the rollout engine) whose weights change with every push; made(wrong, quantization)."""

    def make(wrong: int = 0, quantization: str | None = None):
        engine, worker = Holder(wrong), object.__new__(VerifyingWorker)
        weights = {"norm": torch.ones(3), "table": torch.zeros(4, 2)}
        model = type("Model", (), {"get_per_tensor_param": lambda self, **_: (iter(weights.items()), None)})
        worker.actor, worker.rollout = SimpleNamespace(engine=model()), engine
        worker.config = SimpleNamespace(rollout=SimpleNamespace(dtype="float32", quantization=quantization))

        async def update_weights(self, global_steps=None, mode="auto"):
            engine.load(self.actor.engine.get_per_tensor_param()[0])

        def push(step):
            weights["table"] += 1
            asyncio.run(worker.update_weights(mode=request.param))
            return {}

        monkeypatch.setattr(ActorRolloutRefWorker, "update_weights", update_weights)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(engines.ray, "get", lambda found: found)
        return Pushing(request.param, worker, engine, push), engine

    return make


def test_a_push_that_is_verified_compares_all_and_others_compare_nothing(made, capsys):
    pushing, engine = made()
    metrics = pushing.push(0, verify=True)
    assert "Weight push: 2 tensors, 44 bytes, verified in" in capsys.readouterr().out
    assert metrics["push/verify_seconds"] > 0 and metrics["push/verified"] == engine.compared == 1
    metrics = pushing.push(1, verify=False)
    assert metrics["push/verify_seconds"] == 0 and metrics["push/verified"] == engine.compared == 1
    assert (metrics["push/tensors"], metrics["push/bytes"]) == (2, 44) and engine.pushes == 2


@pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (0, [])])
def test_every_nth_push_behind_the_first_is_verified(every, due):
    """The first, of an attempt's start, always is: `train` says so itself."""
    run = object.__new__(Run)
    run.cfg, run.start = settings(verify_every=every), 10
    assert [step - 10 for step in range(11, 16) if run.verifies(step)] == due


def test_a_matrix_that_is_exported_in_fp8_too_counts_once(made, capsys):
    pushing, engine = made(quantization="fp8")
    assert pushing.push(0, verify=True)["push/bytes"] == 44
    assert "Weight push: 2 tensors, 44 bytes, verified in" in capsys.readouterr().out
    assert engine.exported.keys() == {"norm", "table", "table_fp8", "table_scale_inv"}
    metrics = pushing.push(1, verify=True)
    assert metrics["push/tensors"] == 2 and metrics["push/bytes"] == 44


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_later_push_that_goes_wrong_stops_the_run(made, quantization):
    pushing, _ = made(wrong=3, quantization=quantization)
    for step in (0, 1):
        pushing.push(step, verify=True)
    with pytest.raises(PushError, match="The weight push stops the run: norm in the engine is not what the trainer"):
        pushing.push(2, verify=True)


def test_another_failure_of_the_engine_stays_its_own(made):
    pushing, engine = made()
    engine.verify = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        pushing.push(0, verify=True)


def test_copies_of_a_tied_embedding_on_two_stages_must_be_equal():
    table, norm = torch.arange(8.0).reshape(4, 2), torch.ones(3)
    stages = [("table", table), ("norm", norm), ("table", table.clone())]
    seen = [(name, tensor.numel(), fingerprint(tensor)) for name, tensor in stages]
    assert exported_once(seen) == {
        "table": Whole(8, int(fingerprint(table))),
        "norm": Whole(3, int(fingerprint(norm))),
    }
    seen[-1] = ("table", 8, fingerprint(2 * table))
    with pytest.raises(PushError, match="the trainer's pipeline stages hold different copies of table"):
        exported_once(seen)
