"""The replay buffer against verl's own sampling loop: what is dropped, what is replaced, and when it gives up."""

import itertools

import pytest
from memory_queue import MemoryQueue
from verl.trainer.ppo.v1 import replay_buffer as verls

from retool_mcore.backends.verl import replay_buffer
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.errors import UserError
from retool_mcore.recipes.group_filters import always_fails
from retool_mcore.recipes.sandbox_errors import SandboxErrors
from retool_mcore.rollout.failures import FAILURE, UNKNOWN, Cause
from retool_mcore.rollout.seeds import DRAW, ORDER
from retool_mcore.rollout.wire import to_wire

OFF = {"all_equal": False, "accuracy": None, "samples": [], "refill_limit": 3}


LOST = "the sandbox itself failed"
CALLS = [{"status": "success", "stderr": ""}, {"status": "sandbox_error", "stderr": "no service\nran it\n"}]
OUTAGE = to_wire({"prompt_ids": [], "response_ids": [], "logprobs": [], "calls": CALLS})


class Rollouts:
    """Prompts answered at once: the next group of `groups` is there as soon as it is asked for."""

    def __init__(self, queue, groups, name="g{}", causes=()):
        self.queue, self.groups, self.asked, self.name = queue, list(groups), [], name
        self.names, self.causes = itertools.count(), iter(causes)

    def add(self, count):
        self.asked.append(count)
        for _ in range(count):
            order = next(self.names)
            uid = self.name.format(order)
            outcomes, status = self.groups.pop(0) if self.groups else ([], "failure")
            self.queue.tags[uid] = {"is_prompt": True, "status": status, "global_steps": 1}
            if cause := next(self.causes, None):
                self.queue.tags[uid][FAILURE] = cause
            for i, (acc, drop) in enumerate(outcomes):
                key = f"{uid}_{i}_0"
                self.queue.tags[key] = {"status": "success"}
                outcome = {"acc": acc, "drop": drop}
                extra = {"reward_extra_info": outcome, "finish": "answer"}
                if drop == LOST:
                    outcome["drop"] = ""
                    extra |= {"finish": "sandbox_error", "trajectory": OUTAGE}
                self.queue.rows[key] = {"extra_fields": extra, "data_source": "d", "index": order}
                self.queue.rows[key] |= {ORDER: order, DRAW: 0}


MIXED = ([(1.0, ""), (0.0, "")], "finished")
EQUAL = ([(1.0, ""), (1.0, "")], "finished")
VOID = ([(1.0, "void_turn"), (0.0, "void_turn")], "finished")
BROKEN = ([(1.0, "")], "failure")
OUT = ([(1.0, ""), (0.0, LOST)], "finished")
ALL_OUT = ([(0.0, LOST), (0.0, LOST)], "finished")


@pytest.fixture
def buffer(monkeypatch):
    queue = MemoryQueue()
    for module in (verls.tq, replay_buffer.transfer_queue):
        for name in ("kv_batch_get", "kv_list", "kv_clear"):
            monkeypatch.setattr(module, name, getattr(queue, name))

    def build(groups, mode="sync", sandbox_errors=0.5, rollouts=None, **filters):
        rollouts = Rollouts(queue, groups, **(rollouts or {}))
        chosen = OFF | filters
        kind = replay_buffer.FilteringReplayBuffer if mode == "sync" else replay_buffer.AsyncFilteringReplayBuffer
        made = kind(
            trainer_mode=mode,
            trainer_config={},
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs={},
            poll_interval=0.0,
            refill_fn=rollouts.add,
            filter_groups_metric="acc" if replay_buffer.drops_groups(chosen) else None,
            train_batch_size=2,
            gen_batch_size=1,
            sync_refill_failed_groups=True,
            filters=chosen,
            sandbox_errors=SandboxErrors(sandbox_errors, n=2),
            curriculum=Curriculum(),
        )
        rollouts.add(2)
        return made, rollouts

    return build


def sampled(made):
    batch, metrics = made.sample(global_steps=1, partition_id="train", batch_size=2)
    return len(batch.keys), {key.rsplit("/", 1)[1]: v for key, v in metrics.items() if key.startswith("filters/groups")}


def test_without_filters_every_finished_group_is_sampled(buffer):
    made, rollouts = buffer([EQUAL, VOID])
    assert sampled(made) == (4, {"failed": 0, "sandbox_error": 0})
    assert rollouts.asked == [2]


def test_a_group_with_a_failed_rollout_is_replaced_whole(buffer):
    made, rollouts = buffer([MIXED, BROKEN, MIXED])
    assert sampled(made) == (4, {"failed": 1, "sandbox_error": 0})
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
    assert set(counts) == {*replay_buffer.REASONS, "failed", "sandbox_error"}


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_the_surplus_is_what_the_data_loader_gave_last_whatever_the_names(buffer, mode):
    """Names come from a random generator, and a set of them stands in another order in every process."""
    for name in ("a{:02}", "{:02}z", "b{}", "{}", "x{}y"):
        made, rollouts = buffer([EQUAL] + [MIXED] * 9, mode, rollouts={"name": name}, all_equal=True)
        rollouts.add(4)
        batch, _ = made.sample(global_steps=1, partition_id="train", batch_size=2)
        assert {key.split("_")[0] for key in batch.keys} == {name.format(1), name.format(2)}
        rollouts.queue.tags.clear()


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
@pytest.mark.parametrize("filters", [{}, {"all_equal": True}])
def test_a_curriculum_is_told_once_of_every_group_that_was_judged(buffer, mode, filters):
    """Sampled or dropped, but neither of one that the sandbox spoilt nor twice of one that is looked at again."""
    made, rollouts = buffer([OUT, BROKEN, EQUAL, MIXED, MIXED, MIXED, MIXED], mode, **filters)
    told = []
    made.curriculum.measure = lambda problem, rate: told.append((problem, rate))
    batch, _ = made.sample(global_steps=1, partition_id="train", batch_size=2)
    kept = {f"d/{key.split('_')[0][1:]}" for key in batch.keys}
    expected = dict.fromkeys(kept, 0.5) | {"d/2": 1.0}
    assert dict(told) == expected and len(told) == len(expected)
    made._judge(2, "train")
    assert len(told) == len(expected)


def test_a_step_that_never_fills_its_batch_ends_in_one_sentence(buffer):
    made, _ = buffer([EQUAL] * 50, all_equal=True)
    with pytest.raises(
        UserError, match=r"step 1: \d groups were dropped \(all_equal \d\) before a batch of 2 was full"
    ):
        sampled(made)


def test_rollouts_that_always_fail_end_the_step_too(buffer):
    made, _ = buffer([BROKEN] * 50)
    with pytest.raises(UserError, match=r"\(failed \d+\) .*: correct what made rollouts fail") as error:
        sampled(made)
    assert "recipe.filters" not in str(error.value)


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_what_failed_is_told_and_only_what_was_filtered_asks_for_other_filters(buffer, mode):
    wrong, other = Cause("KeyError", "'x'", "own.py, line 3, in reward"), Cause("OSError", "no room", "")
    causes = [wrong, other, Cause("KeyError", "'y'", "own.py, line 3, in reward")]
    made, _ = buffer([BROKEN] * 3 + [EQUAL] * 50, mode, rollouts={"causes": causes}, all_equal=True)
    with pytest.raises(UserError) as error:
        sampled(made)
    assert "3 groups were dropped" not in str(error.value) and "failed 3)" in str(error.value)
    assert "2 with KeyError: 'x' (own.py, line 3, in reward); 1 with OSError: no room" in str(error.value)
    assert "loosen recipe.filters" in str(error.value)


NOTHING = ([], "failure")
SAME = Cause("ZeroDivisionError", "division by zero", "own.py, line 3, in reward")


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_a_step_whose_first_rollouts_all_fail_alike_ends_at_once(buffer, mode):
    made, rollouts = buffer([NOTHING] * 50, mode, rollouts={"causes": [SAME] * 50}, refill_limit=1000)
    rollouts.queue.tags["running"] = {"is_prompt": True, "status": "running", "global_steps": 1}
    with pytest.raises(UserError, match=r"step 1: every .* of 2 prompts: ZeroDivisionError: division by zero \(own"):
        sampled(made)
    assert len(rollouts.asked) <= 1


@pytest.mark.parametrize("causes", [[SAME, Cause("OSError", "", "")] * 25, [UNKNOWN] * 50, [SAME, None] * 25])
def test_a_step_that_fails_in_different_ways_goes_on_to_its_limit(buffer, causes):
    made, _ = buffer([NOTHING] * 50, rollouts={"causes": causes})
    with pytest.raises(UserError, match="groups were dropped"):
        sampled(made)


def test_a_few_rows_that_cannot_be_rolled_out_are_replaced(buffer):
    made, _ = buffer([NOTHING, MIXED, MIXED], rollouts={"causes": [SAME]})
    assert sampled(made) == (4, {"failed": 1, "sandbox_error": 0})
    for batch, enough in ((1, 1), (2, 2), (64, 8), (512, 26)):
        assert bool(always_fails(1, batch, [SAME] * enough))
        assert not always_fails(1, batch, [SAME] * (enough - 1))


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
@pytest.mark.parametrize("filters", [{}, {"all_equal": True}])
def test_a_group_that_the_sandbox_spoilt_is_generated_again_with_filters_or_without(buffer, mode, filters):
    made, rollouts = buffer([OUT, MIXED, MIXED, MIXED], mode, **filters)
    batch, metrics = made.sample(global_steps=1, partition_id="train", batch_size=2)
    kept = {key.split("_")[0] for key in batch.keys}
    assert len(kept) == 2 and "g0" not in kept and sum(rollouts.asked) > 2
    assert metrics["filters/groups/sandbox_error"] == 1 and metrics["filters/groups/failed"] == 0
    assert 0 < metrics["sandbox/error_share"] == 1 / (2 * sum(rollouts.asked))
    rollouts.groups = [MIXED] * 4
    rollouts.add(2)
    _, metrics = made.sample(global_steps=2, partition_id="train", batch_size=2)
    assert metrics["sandbox/error_share"] == metrics["filters/groups/sandbox_error"] == 0


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_an_outage_ends_the_step_in_one_sentence(buffer, mode):
    made, _ = buffer([ALL_OUT] * 50, mode)
    with pytest.raises(
        UserError,
        match=r"step 1: the sandbox itself failed in 4 of 4 trajectories, .* rollout.sandbox_errors=0.5 .* "
        r"\(it last said: no service ran it\)",
    ):
        sampled(made)


def test_the_share_is_of_a_whole_step_at_least(buffer):
    """One prompt's two lost trajectories are all that is known, and no more than half of a step's four."""
    made, rollouts = buffer([ALL_OUT, MIXED, MIXED])
    assert sampled(made)[0] == 4 and rollouts.asked == [2, 1]
    made, _ = buffer([ALL_OUT, MIXED, MIXED], sandbox_errors=0.3)
    with pytest.raises(UserError, match="the sandbox itself failed in 2 of 4 trajectories"):
        sampled(made)


def test_validation_tells_what_the_sandbox_spoilt_and_refuses_an_outage(buffer, monkeypatch, capsys):
    made, rollouts = buffer([OUT, MIXED])
    monkeypatch.setattr(verls.tq, "kv_list", lambda: {"val": dict(rollouts.queue.tags)})
    assert len(made.sample(global_steps=1, partition_id="val", batch_size=2)[0].keys) == 4
    assert "validation at step 1: 1 of 4 lost to the sandbox (no service ran it)" in capsys.readouterr().out
    made.sandbox_errors.limit = 0.2
    rollouts.queue.tags.clear()
    rollouts.groups = [OUT, MIXED]
    rollouts.add(2)
    with pytest.raises(UserError, match="the sandbox itself failed in 1 of 4 trajectories"):
        made.sample(global_steps=1, partition_id="val", batch_size=2)
