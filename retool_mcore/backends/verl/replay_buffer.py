"""verl's replay buffers with a recipe's group filters: dropped and failed groups are replaced, not trained.

verl's own drop groups whose metric is equal and refill them; the refill is kept, the decision is `group_reason`. With
or without filters, a group in which the sandbox itself failed counts as failed.
"""
# The mix-ins use attributes of verl's classes, which they are mixed into.
# mypy: disable-error-code="attr-defined"

from collections import Counter, defaultdict
from typing import NamedTuple

import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from retool_mcore.backends.verl.first_errors import StopsForFirstErrors
from retool_mcore.data.curriculum import Curriculum, problem_name
from retool_mcore.errors import UserError
from retool_mcore.recipes.columns import read_problems, unwrap
from retool_mcore.recipes.group_filters import (
    FAILED,
    LIMITS,
    REASONS,
    SANDBOX,
    Outcome,
    drops_groups,
    group_reason,
    never_filled,
)
from retool_mcore.recipes.sandbox_errors import SandboxErrors
from retool_mcore.rollout.failures import FAILURE, UNKNOWN, Cause
from retool_mcore.state import heartbeat

assert hasattr(ReplayBuffer, "_wait_for_next_poll"), "verl's replay buffer waits elsewhere: no group that ends is told"


class Judged(NamedTuple):
    """A group that has ended: why it goes ("": it stays), its mean accuracy, its problem, and its place in the data
    loader's order."""

    reason: str
    accuracy: float
    problem: str
    place: tuple[int, str, int, int]


class GroupFilters:
    """Drops groups by `filters` (the section `recipe.filters`), every group with a failed rollout, and every group in
    which the sandbox itself failed.

    A step that would drop more than `filters.refill_limit` batches raises UserError: it would never end. So does one
    that loses more than `sandbox_errors.limit` of its trajectories to the sandbox.
    """

    def __init__(self, *args, filters, sandbox_errors: SandboxErrors, curriculum: Curriculum, **kwargs):
        super().__init__(*args, **kwargs)
        self.filters = filters
        self.sandbox_errors = sandbox_errors
        self.curriculum = curriculum  # is told of a group when it leaves TransferQueue: once, also over a restart
        self._judged: dict[str, Judged] = {}
        self._dropped: Counter[str] = Counter()  # of the current step
        self._causes: dict[str, Cause] = {}  # of its groups in which a rollout failed
        self._batch_size = 0
        self._step, self._lost, self._seen = -1, 0, 0  # trajectories of a step: spoilt by the sandbox, and all

    def sample(self, global_steps, partition_id, batch_size):
        """As verl's; the metrics also hold `filters/groups/REASON`, groups dropped in this step, and
        `sandbox/error_share`, of the trajectories generated for it.

        Validation has no refill: it goes on with what the sandbox spoilt, and says so, up to the same share.
        """
        if partition_id == "val":
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            self._check_validation(global_steps, batch)
            return batch, metrics
        self._batch_size = batch_size
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        self._measure({key.split("_")[0] for key in batch.keys})
        reasons = [*(REASONS if self.filter_groups_metric else ()), SANDBOX, FAILED]
        metrics |= {f"filters/groups/{reason}": self._dropped[reason] for reason in reasons}
        metrics["sandbox/error_share"] = self._error_share(global_steps)
        # Groups that finish between two steps, of rollouts that run ahead, belong to the next.
        self._dropped.clear()
        self._causes.clear()
        self.sandbox_errors.clear()
        return batch, metrics

    def _error_share(self, step: int) -> float:
        """The share of this step's trajectories that the sandbox spoilt, also where it samples more than once."""
        if step != self._step:
            self._step, self._lost, self._seen = step, 0, 0
        self._lost += self.sandbox_errors.lost
        self._seen += self.sandbox_errors.seen
        return self._lost / self._seen if self._seen else 0.0

    def _select_prompt_uids(self, partition_id, sampleable_keys, batch_size):
        """As verl's, which orders groups by the step that asked for them; those of one step in the data loader's order,
        which a restart repeats, and not in that of a Python set.

        All that a step asked for has ended by then where groups are filtered: which of them it takes says nothing
        about their length, and nothing about how many more it had asked for.
        """
        if partition_id != "val":
            sampleable_keys = sorted(sampleable_keys, key=lambda uid: self._judged[uid].place)
        return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)

    def _terminal_eviction_reasons(self, global_steps, partition_id):
        if partition_id == "val":
            return super()._terminal_eviction_reasons(global_steps, partition_id)
        self._judge(global_steps, partition_id)
        self._read_causes(partition_id)
        stale, filtered, _, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        # verl's synchronous buffer keeps a group some of whose rollouts failed: a short group, trained on in silence.
        spoilt = {uid for uid, known in self._judged.items() if known.reason == SANDBOX}
        return stale, filtered, self.failure_keys[partition_id] | spoilt, counts

    def _wait_for_next_poll(self, partition_id, last_debug_time):
        done = len(self.finished_keys[partition_id])
        waiting = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
        heartbeat.again(heartbeat.TRAINER, done, done + waiting)
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _dapo_filtered_keys(self, partition_id):
        if partition_id == "val" or self.filter_groups_metric is None:
            return set(), Counter()
        dropped = {uid: known for uid, known in self._judged.items() if known.reason not in ("", SANDBOX)}
        return set(dropped), Counter(known.accuracy for known in dropped.values())

    def _judge(self, step: int, partition_id: str) -> None:
        """Decide about the groups that finished since the last look."""
        finished = self.finished_keys[partition_id]
        self._judged = {uid: known for uid, known in self._judged.items() if uid in finished}
        new = finished - self._judged.keys()
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in new]
        groups: dict[str, list[dict]] = defaultdict(list)
        for key, extra in zip(keys, _extra_fields(keys, partition_id), strict=True):
            groups[key.split("_")[0]].append(extra)
        for uid, group in groups.items():
            told = [extra["reward_extra_info"] for extra in group]
            outcomes = [Outcome(float(o["acc"]), str(o["drop"])) for o in told]
            reason = SANDBOX if self.sandbox_errors.count(group) else self._filter(outcomes)
            accuracy = sum(outcome.acc for outcome in outcomes) / len(outcomes)
            self._judged[uid] = Judged(reason, accuracy, group[0]["problem"], group[0]["place"])
        self.sandbox_errors.check(step, self._batch_size)

    def _read_causes(self, partition_id: str) -> None:
        """Read why rollouts of the groups that have failed did, which their workers leave in the tag of the prompt."""
        if failed := self.failure_keys[partition_id] - self._causes.keys():
            tags = transfer_queue.kv_list().get(partition_id, {})
            found = {uid: tags.get(uid, {}).get(FAILURE) for uid in failed}
            self._causes |= {uid: Cause(*cause) if cause else UNKNOWN for uid, cause in found.items()}

    def _filter(self, outcomes: list[Outcome]) -> str:
        if self.filter_groups_metric is None:
            return ""
        return group_reason(outcomes, **{name: self.filters[name] for name in LIMITS})

    def _measure(self, groups: set[str]) -> None:
        for known in (self._judged[uid] for uid in sorted(groups & self._judged.keys())):
            if known.reason in ("", "all_equal", "accuracy"):
                self.curriculum.measure(known.problem, known.accuracy)

    def _check_validation(self, step: int, batch) -> None:
        errors = SandboxErrors(self.sandbox_errors.limit, n=1)
        if errors.count(_extra_fields(batch.keys, "val")):
            print(f"validation at step {step}: {errors.lost} of {errors.seen} lost to the sandbox ({errors.last})")
        errors.check(step, prompts=0)

    def _evict_terminal_groups(self, global_steps, partition_id, eviction_reasons):
        _, filtered, failed, _ = eviction_reasons
        self._dropped.update(self._judged[uid].reason if uid in self._judged else FAILED for uid in filtered | failed)
        self._measure(filtered)
        if self._dropped.total() > self.filters["refill_limit"] * self._batch_size:
            causes = list(self._causes.values())
            raise UserError(never_filled(global_steps, self._batch_size, self._dropped, causes))
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)


def _extra_fields(keys: list[str], partition_id: str) -> list[dict]:
    if not keys:
        return []
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
    problems = read_problems(keys, partition_id)
    return [
        extra | {"problem": problem_name(source, index), "place": (drawn.order, source, index, drawn.draw)}
        for extra, (source, index, drawn) in zip(unwrap(data["extra_fields"]), problems, strict=True)
    ]


class FilteringReplayBuffer(StopsForFirstErrors, GroupFilters, ReplayBuffer):
    """Of the synchronous trainer: a step's batch is made of what was asked for in that step."""


class AsyncFilteringReplayBuffer(StopsForFirstErrors, GroupFilters, ReplayBufferAsync):
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
        sandbox_errors=SandboxErrors(config.retool.sandbox_errors, config.actor_rollout_ref.rollout.n),
        curriculum=trainer.curriculum,
    )
