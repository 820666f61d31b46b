"""Which pushes are verified, and that each kind of transport's is: verl's worker and engines as stand-ins in memory."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import torch
from trainer_double import surround
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine_workers import ActorRolloutRefWorker

from retool_mcore.backends.verl import separate, trainer
from retool_mcore.backends.verl.fingerprint import Whole, difference, fingerprint
from retool_mcore.backends.verl.separate import SeparateTrainer
from retool_mcore.backends.verl.trainer import RetoolTrainer, WorkerGroup
from retool_mcore.backends.verl.weight_sync import PushError, VerifyingWorker, exported_once
from retool_mcore.state.schedule import Schedule

STOPS = "The weight push stops the run"  # of backends/verl/weight_sync_vllm.py, which imports vLLM


class Holder:
    """An engine: keeps what is pushed, with one element wrong at push number `wrong`."""

    def __init__(self, wrong: int):
        self.wrong, self.pushes, self.held, self.compared = wrong, 0, {}, 0
        config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=10, block_size=16))
        server = SimpleNamespace(engine=SimpleNamespace(vllm_config=config))
        self.__ray_call__ = SimpleNamespace(remote=lambda function: function(server))
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


class Group(WorkerGroup):
    """One worker, called here instead of by Ray."""

    def __init__(self, worker):
        self.worker = worker

    def record_push(self):
        return [self.worker.record_push()]

    def recorded_push(self):
        return [self.worker.recorded_push()]

    def verify_push(self):
        return [asyncio.run(self.worker.verify_push())]


@pytest.fixture(params=["naive", "host"])
def made(request, monkeypatch, tmp_path):
    """(a trainer of the mode, its engine) whose weights change with every step; made(every, wrong, quantization)."""

    def make(every: int, wrong: int = 0, quantization: str | None = None):
        engine, worker = Holder(wrong), object.__new__(VerifyingWorker)
        weights = {"norm": torch.ones(3), "table": torch.zeros(4, 2)}
        model = type("Model", (), {"get_per_tensor_param": lambda self, **_: (iter(weights.items()), None)})
        worker.actor, worker.rollout = SimpleNamespace(engine=model()), engine
        worker.config = SimpleNamespace(rollout=SimpleNamespace(dtype="float32", quantization=quantization))

        async def update_weights(self, global_steps=None, mode="auto"):
            engine.load(self.actor.engine.get_per_tensor_param()[0])

        def push(self):
            weights["table"] += 1
            asyncio.run(worker.update_weights(mode=request.param))

        monkeypatch.setattr(ActorRolloutRefWorker, "update_weights", update_weights)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        for module in (trainer, separate):
            monkeypatch.setattr(module.ray, "get", lambda found: found)
        for stock in (PPOTrainerSync, PPOTrainerSeparateAsync):
            monkeypatch.setattr(stock, "on_init_end", push)
            monkeypatch.setattr(stock, "on_step_end", push)
        made = object.__new__(RetoolTrainer if request.param == "naive" else SeparateTrainer)
        surround(made, tmp_path, {"retool": {"verify_push_every": every}})
        made.actor_rollout_wg, made.global_steps, made.pushes = Group(worker), 1, 0
        made.saved_step, made.pushed, made.schedule = 1, {}, Schedule(None, 1)
        made.schedule.begin_step(1)
        made._rollout_server_managers = lambda: [SimpleNamespace(server_handles=[engine])]
        replicas = [SimpleNamespace(server_handle=engine)]
        made.standalone_server_manager = SimpleNamespace(get_replicas=lambda: replicas)
        return made, engine

    return make


@pytest.mark.parametrize(("every", "compared"), [(1, [1, 2, 3, 4, 5]), (2, [1, 1, 2, 2, 3]), (0, [1, 1, 1, 1, 1])])
def test_the_first_and_every_nth_push_is_verified(made, capsys, every, compared):
    trainer, engine = made(every)
    trainer.on_init_end()
    said = capsys.readouterr().out
    assert "Weight push: 2 tensors, 44 bytes, verified in" in said and "KV caches: 160 tokens in 1 engines" in said
    assert trainer.config.retool.cache_tokens == 160
    seen = [engine.compared]
    for _ in range(4):
        trainer.on_step_end()
        seen.append(engine.compared)
    assert seen == compared and engine.pushes == 5
    assert trainer.pushed["verified"] == compared[-1] and trainer.pushed["bytes"] == 44
    assert (trainer.pushed["seconds"] > 0) is (compared[-1] > compared[-2])


def test_a_matrix_that_is_exported_in_fp8_too_counts_once(made, capsys):
    trainer, engine = made(1, quantization="fp8")
    trainer.on_init_end()
    assert "Weight push: 2 tensors, 44 bytes, verified in" in capsys.readouterr().out
    assert engine.exported.keys() == {"norm", "table", "table_fp8", "table_scale_inv"}
    trainer.on_step_end()
    assert trainer.pushed["tensors"] == 2 and trainer.pushed["bytes"] == 44


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_later_push_that_goes_wrong_stops_the_run(made, quantization):
    trainer, _ = made(1, wrong=3, quantization=quantization)
    trainer.on_init_end()
    trainer.on_step_end()
    with pytest.raises(PushError, match="The weight push stops the run: norm in the engine is not what the trainer"):
        trainer.on_step_end()


def test_another_failure_of_the_engine_stays_its_own(made):
    trainer, engine = made(1)
    engine.verify = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.on_init_end()


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
