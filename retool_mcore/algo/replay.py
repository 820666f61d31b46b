"""verl's replay buffers with a recipe's group filters: dropped and failed groups are replaced, not trained.

verl's own drop groups whose metric is equal and refill them; the refill is kept, the decision is `group_reason`.
"""

from collections import Counter, defaultdict

import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from retool_mcore import heartbeat
from retool_mcore.algo.columns import plain
from retool_mcore.algo.group_filters import Outcome, drops_groups, group_reason
from retool_mcore.errors import UserError

REASONS = ("verifier_failure", "all_equal", "accuracy", "nothing_left")
assert hasattr(ReplayBuffer, "_wait_for_next_poll"), "verl's replay buffer waits elsewhere: no group that ends is told"


class GroupFilters:
    """Drops groups by `filters` (the section `recipe.filters`) and every group with a failed rollout.

    A step that would drop more than `filters.refill_limit` batches raises UserError: it would never end.
    """

    def __init__(self, *args, filters, **kwargs):
        super().__init__(*args, **kwargs)
        self.filters = filters
        self._reasons: dict[str, tuple[str, float]] = {}  # by group: why it goes ("": it stays), mean accuracy
        self._dropped: Counter[str] = Counter()  # of the current step
        self._batch_size = 0

    def sample(self, global_steps, partition_id, batch_size):
        """As verl's; the metrics also hold `filters/groups/REASON`, groups dropped in this step."""
        self._dropped.clear()
        self._batch_size = batch_size
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            reasons = [*(REASONS if self.filter_groups_metric else ()), "failed"]
            metrics |= {f"filters/groups/{reason}": self._dropped[reason] for reason in reasons}
        return batch, metrics

    def _wait_for_next_poll(self, partition_id, last_debug_time):
        done = len(self.finished_keys[partition_id])
        waiting = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
        heartbeat.again(heartbeat.TRAINER, done, done + waiting)
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _dapo_filtered_keys(self, partition_id):
        if partition_id == "val" or self.filter_groups_metric is None:
            return set(), Counter()
        finished = self.finished_keys[partition_id]
        self._reasons = {uid: known for uid, known in self._reasons.items() if uid in finished}
        for uid, group in self._outcomes(partition_id, finished - self._reasons.keys()).items():
            reason = group_reason(
                group,
                all_equal=self.filters["all_equal"],
                accuracy=self.filters["accuracy"],
                verifier_failures=self.filters["verifier_failures"],
            )
            self._reasons[uid] = reason, sum(outcome.acc for outcome in group) / len(group)
        dropped = {uid: known for uid, known in self._reasons.items() if known[0]}
        return set(dropped), Counter(accuracy for _, accuracy in dropped.values())

    def _outcomes(self, partition_id: str, uids: set[str]) -> dict[str, list[Outcome]]:
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in uids]
        groups: dict[str, list[Outcome]] = defaultdict(list)
        if keys:
            data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
            for key, extra in zip(keys, plain(data["extra_fields"]), strict=True):
                outcome = extra["reward_extra_info"]
                groups[key.split("_")[0]].append(
                    Outcome(float(outcome["acc"]), str(outcome["drop"]), bool(outcome["verifier_failed"]))
                )
        return groups

    def _evict_terminal_groups(self, global_steps, partition_id, eviction_reasons):
        _, filtered, failed, _ = eviction_reasons
        self._dropped.update(self._reasons[uid][0] for uid in filtered)
        self._dropped["failed"] += len(failed)
        dropped = self._dropped.total()
        if dropped > self.filters["refill_limit"] * self._batch_size:
            counts = ", ".join(f"{reason} {count}" for reason, count in sorted(self._dropped.items()) if count)
            raise UserError(
                f"step {global_steps}: {dropped} groups were dropped ({counts}) before a batch of {self._batch_size} "
                "was full: loosen recipe.filters, start from a policy that is neither too weak nor too strong for the "
                "data, or raise recipe.filters.refill_limit."
            )
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)


class FilteringReplayBuffer(GroupFilters, ReplayBuffer):
    """Of the synchronous trainer: a step's batch is made of what was asked for in that step."""

    def _terminal_eviction_reasons(self, global_steps, partition_id):
        stale, filtered, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        if partition_id != "val":
            # verl keeps a group some of whose rollouts failed: a short group, trained on in silence.
            failed = set(self.failure_keys[partition_id])
        return stale, filtered, failed, counts


class AsyncFilteringReplayBuffer(GroupFilters, ReplayBufferAsync):
    """Of trainers whose rollouts run ahead. verl's own replaces failed groups already."""


def build_replay_buffer(trainer) -> GroupFilters:
    """The buffer of one of verl's trainers, from its configuration; `config.retool.recipe` is the recipe's section.

    Prompts are fetched one by one, so that a refill may have any size (`trainer.v1.sampler.sync_refill_failed_groups`).
    """
    config = trainer.config
    sampler = config.trainer.v1.sampler
    filters = config.retool.recipe.filters
    made = FilteringReplayBuffer if trainer.trainer_mode == "sync" else AsyncFilteringReplayBuffer
    return made(
        trainer_mode=trainer.trainer_mode,
        trainer_config=config.trainer.v1.get(trainer.trainer_mode, {}),
        max_off_policy_threshold=sampler.max_off_policy_threshold,
        max_off_policy_strategy=sampler.max_off_policy_strategy,
        sampler_kwargs=sampler.sampler_kwargs,
        refill_fn=trainer._add_prompts_to_generate,
        filter_groups_metric="acc" if drops_groups(filters) else None,
        train_batch_size=config.data.train_batch_size,
        gen_batch_size=1,
        sync_refill_failed_groups=sampler.sync_refill_failed_groups,
        filters=filters,
    )
