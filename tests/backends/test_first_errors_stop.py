"""From the worker in which everything fails to the trainer that stops: the workers and buffers of verl, no Ray."""

import pytest
from test_keeping_worker import Attempt
from verl.trainer.ppo.v1 import replay_buffer as verls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from retool_mcore.backends.verl import first_errors
from retool_mcore.backends.verl.first_errors import StopsForFirstErrors
from retool_mcore.errors import ALIKE, NeverWorked, UserError, describe
from retool_mcore.rollout.failures import ScoringError
from retool_mcore.rollout.unfinished import Unfinished

ERROR = "ZeroDivisionError: division by zero (own_rewards.py, line 7, in brief)"


class Trainer:
    """A replay buffer of verl's over the tags that workers put."""

    def __init__(self, monkeypatch, verls_own=ReplayBuffer):
        self.tags = {"train": {}, "val": {}}
        monkeypatch.setattr(verls.tq, "kv_list", lambda: {name: dict(tags) for name, tags in self.tags.items()})
        monkeypatch.setattr(verls.tq, "kv_clear", self._clear)
        self.made = type("Buffer", (StopsForFirstErrors, verls_own), {})(
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs={},
            poll_interval=0.0,
        )

    def _clear(self, partition_id, keys):
        for key in keys:
            self.tags[partition_id].pop(key, None)

    def ask(self, indices, partition, attempt):
        self.tags[partition] |= {
            f"{id(attempt)}-{index}": {"is_prompt": True, "status": "running", "global_steps": 5} for index in indices
        }

    def look(self):
        self.made._sync_metadata_from_transfer_queue()


@pytest.fixture(params=[ReplayBuffer, ReplayBufferAsync])
def trainer(monkeypatch, request):
    return Trainer(monkeypatch, request.param)


@pytest.fixture
def attempt(monkeypatch, trainer):
    """An attempt whose trajectories are scored by `error`, a function of their number."""
    made = Attempt(monkeypatch)
    made.error = lambda number: ""

    async def compute_score(data):
        made.judged += 1
        outcome = {"acc": 0.0, "pred": "", "drop": "", "error": made.error(made.judged)}
        return {"reward_score": 0.0, "reward_extra_info": outcome}

    async def put(key, partition_id, tag):
        trainer.tags[partition_id].setdefault(key, {}).update(tag)

    async def batch_put(keys, fields, tags, partition_id):
        made.rows |= dict.fromkeys(keys)
        trainer.tags[partition_id] |= dict(zip(keys, tags, strict=True))

    monkeypatch.setattr(made, "compute_score", compute_score)
    monkeypatch.setattr(verls.tq, "async_kv_put", put)
    monkeypatch.setattr(verls.tq, "async_kv_batch_put", batch_put)
    return made


def run(attempt, trainer, folder, indices, workers=1, validate=False):
    """Ask for prompts and roll them out. The tests name groups with a dash, verl by a uuid without one."""
    trainer.ask(indices, "val" if validate else "train", attempt)
    attempt.run(folder, indices, workers=workers, validate=validate)


@pytest.mark.parametrize(("prompts", "workers"), [(20, 1), (20, 8), (8, 8), (2, 2), (1, 1)])
@pytest.mark.parametrize("validate", [False, True])
def test_a_reward_that_raises_in_the_first_prompts_ends_the_run(attempt, trainer, tmp_path, validate, prompts, workers):
    """However few trajectories each worker has, and also in a validation."""
    attempt.error = lambda number: ERROR
    run(attempt, trainer, tmp_path, range(prompts), workers, validate)
    with pytest.raises(UserError) as stopped:
        trainer.look()
    for part in ("division by zero", "(own_rewards.py, line 7, in brief)", "every rollout so far has failed"):
        assert part in str(stopped.value)
    assert not any(first_errors._TAG in key for tags in trainer.tags.values() for key in tags), "and is gone"
    assert attempt.rows == {}


def test_fewer_than_eight_of_many_prompts_are_replaced_as_ever(attempt, trainer, tmp_path):
    trainer.ask(range(100, 120), "train", attempt)
    attempt.error = lambda number: ERROR
    run(attempt, trainer, tmp_path, range(ALIKE - 1))
    trainer.look()
    assert len(trainer.made.failure_keys["train"]) == ALIKE - 1
    run(attempt, trainer, tmp_path / "more", [50])
    with pytest.raises(NeverWorked):
        trainer.look()


def test_an_error_of_single_trajectories_is_counted_once_the_reward_has_worked(attempt, trainer, tmp_path):
    attempt.error = lambda number: "" if number == 1 else ERROR
    run(attempt, trainer, tmp_path, range(ALIKE + 2))
    trainer.look()
    assert len(trainer.made.finished_keys["train"]) == ALIKE + 2 and len(attempt.rows) == 2 * (ALIKE + 2)
    assert len(Unfinished(tmp_path).found) == 1, "what crashed is scored again by a later attempt"


def test_what_fails_in_one_worker_and_works_in_another_goes_on(attempt, trainer, tmp_path):
    attempt.fail = lambda number: number % 8 == 2
    run(attempt, trainer, tmp_path, range(2 * ALIKE), workers=4)
    trainer.look()
    attempt.fail = lambda number: True
    run(attempt, trainer, tmp_path / "late", range(100, 100 + 2 * ALIKE), workers=4)
    trainer.look()


def test_one_prompt_of_several_that_always_fails_stops_nothing(attempt, trainer, tmp_path):
    trainer.ask([7, 8], "val", attempt)
    attempt.fail = lambda number: True
    for _ in range(2 * ALIKE):
        run(attempt, trainer, tmp_path, [1], validate=True)
        trainer.look()


def test_a_rollout_that_raises_from_the_start_ends_the_run(attempt, trainer, tmp_path):
    """As a chat template that raises, or an environment that cannot be prepared."""
    attempt.fail = lambda number: True
    run(attempt, trainer, tmp_path, range(ALIKE))
    with pytest.raises(UserError, match=r"RuntimeError: killed \(test_keeping_worker.py, line"):
        trainer.look()


def test_a_tool_that_never_worked_ends_the_run_at_once(attempt, trainer, tmp_path, monkeypatch):
    async def generate(*args, **kwargs):
        raise NeverWorked("the tool search has failed 8 times of 8")

    run(attempt, trainer, tmp_path, [1, 2])
    trainer.look()
    attempt.generate = generate
    run(attempt, trainer, tmp_path / "more", [3])
    with pytest.raises(UserError, match="the tool search has failed 8 times"):
        trainer.look()


def test_a_scoring_error_is_described_as_what_it_was():
    assert describe(ScoringError(ERROR)).endswith("division by zero (own_rewards.py, line 7, in brief)")
    assert str(ScoringError("bare")) == "bare"
