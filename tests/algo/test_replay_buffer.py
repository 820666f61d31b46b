"""The replay buffer against verl's own sampling loop: what is dropped, what is replaced, and when it gives up."""

import itertools

import pytest
from memory_queue import MemoryQueue
from verl.trainer.ppo.v1 import replay_buffer as verls

from retool_mcore.algo import replay
from retool_mcore.errors import UserError

OFF = {"all_equal": False, "accuracy": None, "verifier_failures": None, "samples": [], "refill_limit": 3}


class Rollouts:
    """Prompts answered at once: the next group of `groups` is there as soon as it is asked for."""

    def __init__(self, queue, groups):
        self.queue, self.groups, self.asked = queue, list(groups), []
        self.names = itertools.count()

    def add(self, count):
        self.asked.append(count)
        for _ in range(count):
            uid = f"g{next(self.names)}"
            outcomes, status = self.groups.pop(0) if self.groups else ([], "failure")
            self.queue.tags[uid] = {"is_prompt": True, "status": status, "global_steps": 1}
            for i, (acc, drop) in enumerate(outcomes):
                key = f"{uid}_{i}_0"
                self.queue.tags[key] = {"status": "success"}
                outcome = {"acc": acc, "drop": drop, "verifier_failed": 0.0}
                self.queue.rows[key] = {"extra_fields": {"reward_extra_info": outcome}}


MIXED = ([(1.0, ""), (0.0, "")], "finished")
EQUAL = ([(1.0, ""), (1.0, "")], "finished")
VOID = ([(1.0, "void_turn"), (0.0, "void_turn")], "finished")
BROKEN = ([(1.0, "")], "failure")


@pytest.fixture
def buffer(monkeypatch):
    queue = MemoryQueue()
    for module in (verls.tq, replay.transfer_queue):
        for name in ("kv_batch_get", "kv_list", "kv_clear"):
            monkeypatch.setattr(module, name, getattr(queue, name))

    def build(groups, **filters):
        rollouts = Rollouts(queue, groups)
        chosen = OFF | filters
        made = replay.FilteringReplayBuffer(
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs={},
            poll_interval=0.0,
            refill_fn=rollouts.add,
            filter_groups_metric="acc" if replay.drops_groups(chosen) else None,
            train_batch_size=2,
            gen_batch_size=1,
            sync_refill_failed_groups=True,
            filters=chosen,
        )
        rollouts.add(2)
        return made, rollouts

    return build


def sampled(made):
    batch, metrics = made.sample(global_steps=1, partition_id="train", batch_size=2)
    return len(batch.keys), {key.rsplit("/", 1)[1]: v for key, v in metrics.items() if key.startswith("filters/groups")}


def test_without_filters_every_finished_group_is_sampled(buffer):
    made, rollouts = buffer([EQUAL, VOID])
    assert sampled(made) == (4, {"failed": 0})
    assert rollouts.asked == [2]


def test_a_group_with_a_failed_rollout_is_replaced_whole(buffer):
    made, rollouts = buffer([MIXED, BROKEN, MIXED])
    assert sampled(made) == (4, {"failed": 1})
    assert rollouts.asked == [2, 1]


@pytest.mark.parametrize(
    ("filters", "first", "reason"),
    [
        ({"all_equal": True}, EQUAL, "all_equal"),
        ({"accuracy": [0.1, 0.9]}, EQUAL, "accuracy"),
        ({"samples": ["void_turn"]}, VOID, "nothing_left"),
        ({"all_equal": True}, BROKEN, "failed"),
    ],
)
def test_dropped_groups_are_replaced_and_counted_until_the_batch_is_full(buffer, filters, first, reason):
    made, rollouts = buffer([first, MIXED, MIXED, MIXED, MIXED], **filters)
    size, counts = sampled(made)
    assert size == 4 and sum(rollouts.asked) > 2
    assert {name for name, count in counts.items() if count} == {reason} and counts[reason] == 1
    assert set(counts) == {*replay.REASONS, "failed"}


def test_a_step_that_never_fills_its_batch_ends_in_one_sentence(buffer):
    made, _ = buffer([EQUAL] * 50, all_equal=True)
    with pytest.raises(
        UserError, match=r"step 1: \d groups were dropped \(all_equal \d\) before a batch of 2 was full"
    ):
        sampled(made)


def test_rollouts_that_always_fail_end_the_step_too(buffer):
    made, _ = buffer([BROKEN] * 50)
    with pytest.raises(UserError, match=r"\(failed \d+\)"):
        sampled(made)
