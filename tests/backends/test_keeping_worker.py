"""The worker that takes over what an earlier attempt had finished, on verl's own, without Ray, engine or queue."""

import asyncio
from types import SimpleNamespace

import hydra
import numpy as np
import pytest
import torch
from agent_loops import TOKENIZER
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.backends.verl.agent_loop_worker import COLUMN, KeepingManager, KeepingWorker
from retool_mcore.rollout.failures import FAILURE, Cause
from retool_mcore.rollout.live import Live
from retool_mcore.rollout.seeds import DRAW, ORDER, Draws
from retool_mcore.rollout.unfinished import Unfinished
from retool_mcore.rollout.wire import from_wire

EOS = TOKENIZER.eos_token_id
ENTRY = {
    "name": "retool",
    "_target_": "retool_mcore.backends.verl.agent_loop.RetoolAgentLoop",
    "format": "none",
    "limits": {"max_turns": 4, "max_turn_tokens": 100, "max_observation_tokens": 64},
    "sandbox": {"kind": "local", "workers": 1},
    "timeout_s": 5.0,
    "seed": 1,
}
ROLLOUT = {"prompt_length": 200, "response_length": 300, "full_determinism": False, "n": 2, "val_kwargs": {"n": 2}}


class Attempt:
    """One start of the trainer: its workers share an engine that counts, a reward and a queue."""

    def __init__(self, monkeypatch):
        self.generated, self.judged, self.rows, self.tags = [], 0, {}, {}
        self.cache_tokens = None
        self.fail = lambda session: False
        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", self._status)
        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", self._put)
        monkeypatch.setitem(_agent_loop_registry, "retool", OmegaConf.create(ENTRY))

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.generated.append(sampling_params["seed"])
        if self.fail(len(self.generated)):
            raise RuntimeError("killed")
        generator = np.random.default_rng(sampling_params["seed"])
        ids = [*generator.integers(10, 300, 12).tolist(), EOS]
        versions = {name: 4 for name in ("global_steps", "min_global_steps", "max_global_steps")}
        return TokenOutput(
            token_ids=ids, log_probs=generator.normal(size=13).tolist(), stop_reason="completed", extra_fields=versions
        )

    async def compute_score(self, data):
        self.judged += 1
        return {"reward_score": 0.1, "reward_extra_info": {"acc": np.float64(1.0), "pred": "42", "drop": ""}}

    async def _status(self, key, partition_id, tag):
        self.tags[key] = tag["status"]

    async def _put(self, keys, fields, tags, partition_id):
        for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            self.rows[key] = {n: getattr(c[row], "data", c[row]) for n, c in fields.items()} | {"tag": tag}

    def worker(self):
        made = object.__new__(KeepingWorker)
        made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}, "data": {}})
        made.llm_client, made.tokenizer, made.processor, made.hf_model_type = self, TOKENIZER, None, "qwen2"
        made.dataset_cls, made.tools, made.opened, made.mm_processor_kwargs = None, [], {}, {}
        made.loops, made.distillation_enabled, made.live = {}, False, Live(self.cache_tokens, longest=500, window=2)
        made.reward_loop_worker_handles = [SimpleNamespace(compute_score=SimpleNamespace(remote=self.compute_score))]
        return made

    def run(self, folder, indices, workers=1, validate=False):
        """Prompts `indices` of step 5, in the data loader's order, by `workers`; the uids are of this attempt."""
        made, draws = [self.worker() for _ in range(workers)], Draws()

        async def one(place, index):
            drawn = draws.number(5, "math", index)
            prompt = {
                "uid": f"{id(self)}-{index}" + (f".{drawn.draw}" if drawn.draw else ""),
                "index": np.int64(index),
                **{ORDER: drawn.order, DRAW: drawn.draw},
                "global_steps": 5,
                "agent_name": "retool",
                "data_source": "math",
                "raw_prompt": [{"role": "user", "content": f"{index} * 7?"}],
                "reward_model": {"ground_truth": "42"},
                "extra_info": {"index": index, "tools": np.array(["a"])},
                COLUMN: str(folder),
            }
            trajectory = {"step": 5, "sample_index": index, "rollout_n": 0, "validate": validate}
            await made[place % workers]._run_prompt(prompt, {"temperature": 1.0}, trajectory)

        async def main():
            await asyncio.gather(*(one(place, index) for place, index in enumerate(indices)))

        asyncio.run(main())
        return {key.split("-")[1]: row for key, row in self.rows.items()}


def same(found, expected):
    """Whether two rows of the queue are alike, but for the uid and the mark."""
    assert found.keys() == expected.keys() and COLUMN not in found
    for name in found.keys() - {"uid", "extra_fields", "metrics"}:
        if isinstance(found[name], torch.Tensor):
            assert found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]), name
        else:
            assert found[name] == expected[name], name
    notes, others = (from_wire(row["extra_fields"]["trajectory"]) for row in (found, expected))
    assert notes["taken_over"] and not others["taken_over"]
    assert notes["response_ids"].tolist() == others["response_ids"].tolist() and notes["spans"] == others["spans"]
    for own, other in zip(*(sorted(row["extra_fields"].items()) for row in (found, expected)), strict=True):
        assert own == other or own[0] == other[0] == "trajectory"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_was_finished_is_neither_generated_nor_judged_again(tmp_path, monkeypatch, workers):
    undisturbed = Attempt(monkeypatch)
    expected = undisturbed.run(tmp_path / "other", [1, 2, 3])
    assert len(undisturbed.generated) == undisturbed.judged == len(expected) == 6

    killed = Attempt(monkeypatch)
    killed.fail = lambda number: number > 4
    killed.run(tmp_path / "step", [1, 2, 3], workers=2)
    assert killed.judged == 4 and "failure" in killed.tags.values()

    resumed = Attempt(monkeypatch)
    found = resumed.run(tmp_path / "step", [1, 2, 3], workers=workers)
    assert len(resumed.generated) == resumed.judged == 2
    assert set(resumed.tags.values()) == {"finished"}
    done = killed.generated[:4]
    assert sorted(done + resumed.generated) == sorted(undisturbed.generated)
    assert found.keys() == expected.keys()
    taken = [key for key, row in found.items() if from_wire(row["extra_fields"]["trajectory"])["taken_over"]]
    assert len(taken) == 4
    for key in taken:
        same(found[key], expected[key])
    # The third attempt finds both files of the first and that of the second.
    third = Attempt(monkeypatch)
    third.run(tmp_path / "step", [1, 2, 3])
    assert third.generated == [] and len(third.rows) == 6
    assert len(Unfinished(tmp_path / "step").found) == 6


def test_two_draws_of_one_problem_are_rolled_out_and_taken_over_each_for_itself(tmp_path, monkeypatch):
    undisturbed = Attempt(monkeypatch)
    expected = undisturbed.run(tmp_path / "other", [1, 2, 1])
    assert len(expected) == 6 and len(set(undisturbed.generated)) == 6
    killed = Attempt(monkeypatch)
    killed.fail = lambda number: number > 4
    killed.run(tmp_path / "step", [1, 2, 1])
    resumed = Attempt(monkeypatch)
    found = resumed.run(tmp_path / "step", [1, 2, 1], workers=2)
    assert len(resumed.generated) == 2
    assert sorted(killed.generated[:4] + resumed.generated) == sorted(undisturbed.generated)
    for key in expected:
        assert torch.equal(found[key]["responses"], expected[key]["responses"]), key


def test_the_manager_numbers_what_it_hands_out(monkeypatch):
    handed = []
    monkeypatch.setattr(AgentLoopManagerTQ, "generate_sequences", lambda self, prompts: handed.append(prompts))
    manager = object.__new__(KeepingManager)
    manager.draws = Draws()

    def drawn(step, *indices, **columns):
        prompts = {"index": list(indices), "data_source": ["math"] * len(indices)}
        batch = tensordict_utils.get_tensordict(prompts, non_tensor_dict={"global_steps": step, **columns})
        manager.generate_sequences(batch)
        return list(zip(*(tensordict_utils.get(handed[-1], name) for name in (ORDER, DRAW)), strict=True))

    assert drawn(1, 4, 5, 4) == [(0, 0), (1, 0), (2, 1)]
    assert drawn(0, 4, 4, validate=True) == [(0, 0), (1, 1)]
    assert drawn(1, 4) == [(3, 2)], "a refill belongs to its step"
    assert drawn(2, 4) == [(0, 0)]


def test_a_failed_rollout_leaves_its_cause_with_its_prompt(tmp_path, monkeypatch):
    attempt, causes = Attempt(monkeypatch), []

    async def put(key, partition_id, tag):
        if FAILURE in tag:
            causes.append((key, partition_id, Cause(*tag[FAILURE])))

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", put)
    attempt.fail = lambda number: number == 1
    attempt.run(tmp_path, [1])
    ((key, partition, cause),) = causes
    assert (key, partition) == (f"{id(attempt)}-1", "train")
    assert str(cause).startswith("RuntimeError: killed (test_keeping_worker.py, line ") and "in generate" in cause.where


def test_another_problem_with_the_same_index_is_not_taken_for_it(tmp_path, monkeypatch):
    first = Attempt(monkeypatch)
    first.run(tmp_path, [1])
    changed = Attempt(monkeypatch)
    monkeypatch.setattr("retool_mcore.backends.verl.agent_loop_worker._ROW", ("raw_prompt", "global_steps"))
    changed.run(tmp_path, [1])
    assert len(changed.generated) == 2


def test_validation_is_not_kept(tmp_path, monkeypatch):
    attempt = Attempt(monkeypatch)
    assert len(attempt.run(tmp_path / "step", [1], validate=True)) == 2 and not (tmp_path / "step").exists()


def test_no_more_are_at_work_than_the_engines_caches_hold(monkeypatch, tmp_path):
    attempt = Attempt(monkeypatch)
    attempt.cache_tokens = 2 * 500 // 3  # of two trajectories, as long as they are taken to be at first
    at_work, most = 0, 0
    sample = attempt.generate

    async def generate(*args, **kwargs):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        return await sample(*args, **kwargs)

    attempt.generate = generate
    attempt.run(tmp_path, [1, 2, 3])
    assert len(attempt.generated) == 6 and 1 <= most < 6


def test_what_the_sandbox_spoilt_is_generated_again(monkeypatch, tmp_path):
    first = Attempt(monkeypatch)
    first.run(tmp_path, [1])
    (file,) = tmp_path.glob("*")
    worker = first.worker()
    spoilt = SimpleNamespace(
        routed_experts=None, extra_fields={"finish": "sandbox_error"}, prompt_ids=[1], response_ids=[2]
    )
    kept = []
    monkeypatch.setattr(KeepingWorker.__mro__[1], "_agent_loop_postprocess", lambda *_, **__: asyncio.sleep(0))
    place = SimpleNamespace(append=lambda *record: kept.append(record))

    async def post():
        from retool_mcore.backends.verl import agent_loop_worker as module

        module._PLACE.set((place, "key"))
        await worker._agent_loop_postprocess(spoilt, False)

    asyncio.run(post())
    assert kept == [] and file.stat().st_size > 0


def test_a_loop_is_as_hydra_would_make_it(monkeypatch):
    worker = Attempt(monkeypatch).worker()
    own = {"server_manager": worker, "tokenizer": TOKENIZER, "processor": None, "hf_model_type": "qwen2"}
    wrapped = {"trainer_config": DictConfigWrap(worker.config), "data_config": DictConfigWrap(worker.config.data)}
    verls = hydra.utils.instantiate(
        config=_agent_loop_registry["retool"], dataset_cls=None, tools=ToolListWrap([]), **own, **wrapped
    )
    ours = worker._loop("retool")
    assert ours is not worker._loop("retool"), "a loop lives for one trajectory"
    names = ("limits", "format", "sandbox_json", "toolbox_json", "timeout_s", "seed", "rollout_config", "data_config")
    assert type(ours) is type(verls)
    assert {name: getattr(ours, name) for name in names} == {name: getattr(verls, name) for name in names}
