"""From the worker in which everything fails to the trainer that stops: the workers and buffers of verl, no Ray."""

import asyncio
from types import SimpleNamespace

import pytest
from memory_queue import MemoryQueue
from test_keeping_worker import Attempt
from verl.trainer.ppo.v1 import replay_buffer as verls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from retool_mcore.backends.verl import first_errors
from retool_mcore.backends.verl.agent_loop_worker import KeepingWorker
from retool_mcore.backends.verl.first_errors import ScoringError, StopsForFirstErrors
from retool_mcore.errors import ALIKE, NeverWorked, UserError, describe
from retool_mcore.rollout.unfinished import Unfinished

ERROR = "ZeroDivisionError: division by zero (own_rewards.py, line 7, in brief)"


@pytest.fixture
def attempt(monkeypatch):
    """An attempt whose trajectories are scored by `error`, a function of their number."""
    made = Attempt(monkeypatch)
    made.error = lambda number: ""

    async def compute_score(data):
        made.judged += 1
        outcome = {"acc": 0.0, "pred": "", "drop": "", "error": made.error(made.judged)}
        return {"reward_score": 0.0, "reward_extra_info": outcome}

    async def put(key, partition_id, tag):
        made.tags[key] = tag | {"partition": partition_id} if first_errors._TAG in tag else tag["status"]

    monkeypatch.setattr(made, "compute_score", compute_score)
    monkeypatch.setattr(first_errors.transfer_queue, "async_kv_put", put)
    return made


def never_worked(attempt):
    return [tag for tag in attempt.tags.values() if isinstance(tag, dict) and first_errors._TAG in tag]


@pytest.mark.parametrize("validate", [False, True])
def test_a_reward_that_raises_for_the_first_prompts_ends_the_run(attempt, tmp_path, validate):
    attempt.error = lambda number: ERROR
    attempt.run(tmp_path, range(ALIKE - 1), validate=validate)
    assert not never_worked(attempt) and set(attempt.tags.values()) == {"failure"}, "as sporadic errors"
    attempt.run(tmp_path, range(ALIKE), validate=validate)
    tag = never_worked(attempt)[0]
    assert tag["partition"] == ("val" if validate else "train")
    for part in ("ZeroDivisionError: division by zero", "(own_rewards.py, line 7, in brief)", f"{ALIKE} times"):
        assert part.removeprefix("ZeroDivisionError: ") in tag[first_errors._TAG]


def test_an_error_of_single_trajectories_is_counted_once_the_reward_has_worked(attempt, tmp_path):
    attempt.error = lambda number: "" if number == 1 else ERROR
    attempt.run(tmp_path, range(ALIKE + 2))
    assert set(attempt.tags.values()) == {"finished"} and len(attempt.rows) == 2 * (ALIKE + 2)
    assert len(Unfinished(tmp_path).found) == 1, "what crashed is scored again by a later attempt"


def test_one_prompt_that_always_fails_stops_nothing(attempt, tmp_path):
    attempt.fail = lambda number: number <= 2
    worker = attempt.worker()
    attempt.worker = lambda: worker
    for _ in range(2 * ALIKE):
        attempt.generated.clear()
        attempt.run(tmp_path / "x", [1], validate=True)
    assert not never_worked(attempt)


def test_a_rollout_that_raises_from_the_start_ends_the_run(attempt, tmp_path):
    """As a chat template that raises, or an environment that cannot be prepared."""
    attempt.fail = lambda number: True
    attempt.run(tmp_path, range(ALIKE))
    assert "RuntimeError: killed (test_keeping_worker.py, line" in never_worked(attempt)[0][first_errors._TAG]


@pytest.mark.parametrize("verls_own", [ReplayBuffer, ReplayBufferAsync])
@pytest.mark.parametrize("partition", ["train", "val"])
def test_the_replay_buffer_stops_at_its_next_look(monkeypatch, verls_own, partition):
    queue = MemoryQueue(tags={"g0": {"is_prompt": True, "status": "running", "global_steps": 1}})
    monkeypatch.setattr(verls.tq, "kv_list", lambda: {partition: dict(queue.tags)})
    buffer = type("Buffer", (StopsForFirstErrors, verls_own), {})(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.0,
    )
    buffer._sync_metadata_from_transfer_queue()

    async def put(key, partition_id, tag):
        queue.tags[key] = tag

    monkeypatch.setattr(first_errors.transfer_queue, "async_kv_put", put)

    async def fail():
        async with first_errors.stopped_by_first_errors(KeepingWorker.first.func(None), "g0", partition):
            raise NeverWorked("the tool search has failed")

    with pytest.raises(NeverWorked):
        asyncio.run(fail())
    with pytest.raises(UserError, match="the tool search has failed"):
        buffer.sample(1, partition, 1)


def test_a_scoring_error_is_described_as_what_it_was():
    assert describe(ScoringError(ERROR)).endswith("division by zero (own_rewards.py, line 7, in brief)")
    assert SimpleNamespace(e=ScoringError("bare")).e.args == ("bare",)
