"""verl's V1 trainers, seen into: every step's trajectories on disk, behaviour metrics, whole checkpoints."""
# The mix-ins use attributes of verl's classes, which they are mixed into.
# mypy: disable-error-code="attr-defined"

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import ray
import transfer_queue
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from retool_mcore.backends.verl import bypass, mini_batches
from retool_mcore.backends.verl.audited_loss import AuditingWorker
from retool_mcore.backends.verl.critic import CriticWorker
from retool_mcore.backends.verl.observer import StepObserver
from retool_mcore.backends.verl.phases import Phases, optimizer_steps
from retool_mcore.backends.verl.replay_buffer import build_replay_buffer
from retool_mcore.backends.verl.take_over import TakeOver
from retool_mcore.backends.verl.validation import Validating
from retool_mcore.backends.verl.weight_sync import PushError, VerifyingWorker
from retool_mcore.data.curriculum import load_curriculum, problem_name
from retool_mcore.metrics.audit import MaskAuditError
from retool_mcore.metrics.charts import Overview
from retool_mcore.ports import meeting_range
from retool_mcore.recipes.columns import unwrap
from retool_mcore.recipes.correction import count_rejected
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.recipes.step import RecipeStep, whole_step
from retool_mcore.rollout.live import cache_tokens
from retool_mcore.state import alarms, checkpoints, stop
from retool_mcore.state.schedule import Schedule

POLL_S = 0.05


class PolicyWorker(VerifyingWorker, AuditingWorker):
    """verl's RL worker: its weight push verified, its loss audited, its checkpoints as configured."""


class WorkerGroup(RayWorkerGroup):
    """verl's, whose ranks meet at a port from below the ephemeral range: verl looks for a free one, and on a busy host
    another process had it before rank 0 listened there."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{"master_port_range": meeting_range()} | options)


class MarkComplete(CheckpointCallback):
    """Called by verl after the last file of a checkpoint is written.

    It counts once the step's metrics and trajectories are on the disk as well: a run that is killed in between makes
    the step again, from trajectories that it has, instead of going on behind a step that nobody has a record of.
    """

    def on_save(self, trainer, global_step, checkpoint_dir, **kwargs):
        trainer.unrecorded = Path(checkpoint_dir), time.monotonic()


class RetoolTrainerMixin(Phases):
    """What is ours in a step of one of verl's trainers, whichever its mode.

    `config.retool` holds `stage_dir`, `trajectories` (a folder), `keep_trajectory_bytes` and `rotation`, the arguments
    of checkpoints.rotate.
    """

    unrecorded: tuple[Path, float] | None = None  # a checkpoint whose step is not logged yet, and when it was written
    being_marked: Future[dict[str, float]] | None = None  # gives its metrics once it counts
    saved: Mapping[str, float] = {}  # metrics of the checkpoint that has become whole since the last step was logged
    fetched = 0  # prompts since the last checkpoint
    ending: alarms.Ended | None = None  # by an alarm that was known only after the step
    pushes = 0
    pushed: dict[str, float] = {}  # of the last push that was verified: tensors, bytes, seconds of the verification

    def __init__(self, config):
        self.curriculum = load_curriculum(config.retool.curriculum, config.data.train_files, config.data.seed)
        super().__init__(config)
        self.recipe_step = RecipeStep(config.retool.recipe, Path(config.retool.stage_dir))
        self.observer = StepObserver(config.retool)
        # verl looks every 2 s whether the rollouts are done: half of a short step is then waiting.
        self.replay_buffer.poll_interval = POLL_S

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        self.role_worker_mapping |= {
            role: ray.remote(PolicyWorker)
            for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
            if role in self.mapping
        }
        if self.use_critic:
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)

    def on_init_end(self):
        """The first push. Raises PushError when a tensor in the engine is not the trainer's."""
        assert isinstance(self.actor_rollout_wg, WorkerGroup), "verl makes its worker groups elsewhere than it did"
        self._push(super().on_init_end)
        told = "Weight push: {tensors:,} tensors, {bytes:,} bytes, verified in {seconds:.2f} s"
        print(told.format(**self.pushed))
        servers = [server for manager in self._rollout_server_managers() for server in manager.server_handles]
        held = ray.get([server.__ray_call__.remote(cache_tokens) for server in servers])
        self.config.retool.cache_tokens = sum(held)
        print(f"KV caches: {sum(held):,} tokens in {len(held)} engines")

    def _push(self, push: Callable[[], None]) -> None:
        """verl's `push`, verified where it is due: the first of an attempt, and every so many."""
        every = self.config.retool.verify_push_every
        due = self.pushes % every == 0 if every else self.pushes == 0
        self.pushes += 1
        if due:
            self.actor_rollout_wg.record_push()
        push()
        if due:
            try:
                found = self._verify_push()
            except PushError as error:
                raise getattr(error, "cause", error) from error
            self.pushed = found | {"verified": self.pushed.get("verified", 0) + 1}
        else:
            self.pushed = self.pushed | {"seconds": 0.0}

    def _verify_push(self) -> dict[str, float]:
        return ray.get(self.actor_rollout_wg.verify_push())[0]

    def fit(self, agent_loop_manager):
        super().fit(agent_loop_manager)
        self._mark_saved()
        self.finish_saves(blocking=True)

    def on_train_begin(self):
        super().on_train_begin()
        self.saved_step = self.global_steps - 1  # what this attempt started from
        updates = optimizer_steps(self) * self.parameter_sync_step
        retool = self.config.retool
        self.alarms = alarms.Alarms(retool.alarms, Path(retool.stage_dir), self.saved_step, updates)
        self.schedule = Schedule(retool.get("save_minutes"), self.config.trainer.save_freq)

    def on_step_begin(self):
        """Raises StopRequested where it is asked for and nothing would be lost: the last step is saved and logged."""
        super().on_step_begin()
        self._mark_saved()
        if self.ending is not None:
            self._end(self.ending)
        self.schedule.begin_step(self.global_steps, parts=optimizer_steps(self))
        self.finish_saves(blocking=False)
        if self.saved_step == self.global_steps - 1 and stop.requested(Path(self.config.retool.stage_dir)):
            self._shutdown_dump_executor()
            self.finish_saves(blocking=True)
            raise stop.StopRequested(self.saved_step)

    def on_step_end(self):
        # Before vLLM wakes up to take the new weights: afterwards the device memory is its own.
        stage_dir = Path(self.config.retool.stage_dir)
        if not self.schedule.another_fits():
            stop.request(stage_dir)
        asked = stop.requested(stage_dir) or self.schedule.due()
        if asked and self.saved_step != self.global_steps:
            with marked_timer("save_checkpoint", self.timing_raw):
                self._save_checkpoint()
        self._push(super().on_step_end)

    def _save_checkpoint(self):
        if self.alarms.leads_back and self.global_steps < self.total_training_steps:
            return print(f"Step {self.global_steps} is not saved: the next may have to go back behind it.", flush=True)
        clock = time.monotonic()
        self.finish_saves(blocking=True)
        self.save_started = time.monotonic()
        super()._save_checkpoint()
        self.save_notes(self._checkpoint())  # it counts once on_save's mark is on the disk
        self.saved_step, self.fetched = self.global_steps, 0
        self.schedule.save_ended(time.monotonic() - clock)

    def save_notes(self, checkpoint: Path) -> None:
        """Write what of ours belongs into a checkpoint that verl has written."""
        self.curriculum.save(checkpoint)

    def _load_checkpoint(self):
        """Also leaves out the prompts that led to an alarm after this checkpoint."""
        super()._load_checkpoint()
        self.curriculum.load(self._checkpoint())
        left_out = alarms.left_out(Path(self.config.retool.stage_dir), self.global_steps)
        if self.trainer_mode != "sync":
            restored = (transfer_queue.kv_list("train") or {}).get("train", {})
            # verl restored such prompts, too, and what the step itself was trained on, cleared only after the save.
            kept = set() if left_out else {key for key, tag in restored.items() if tag.get("is_prompt")}
            if gone := [key for key in restored if key.split("_")[0] not in kept]:
                transfer_queue.kv_clear(keys=gone, partition_id="train")
            self._restored_tq_prompt_count = len(kept)
        for _ in range(left_out):
            super()._fetch_one_gen_batch()
        self.fetched = 0

    def _checkpoint(self) -> Path:
        return checkpoints.folder_of(self.config.trainer.default_local_dir, self.global_steps)

    def _fetch_one_gen_batch(self):
        """The next prompt that the curriculum takes (verl fetches them one by one, see `build_replay_buffer`)."""
        while True:
            self.fetched += 1
            batch = super()._fetch_one_gen_batch()
            (source,), (index,) = (unwrap(batch[name]) for name in ("data_source", "index"))
            if self.curriculum.takes(problem_name(source, int(index))):
                return batch

    def _end(self, ending: alarms.Ended):
        self._shutdown_dump_executor()
        self.finish_saves(blocking=True)
        if ending.answer == "back":
            stage_dir = Path(self.config.retool.stage_dir)
            alarms.go_back(stage_dir, self.global_steps, self.saved_step, self.fetched, str(ending))
        raise ending

    def _mark_saved(self) -> None:
        """The last step is logged: its checkpoint is to count as soon as its trajectories are on the disk."""
        if self.unrecorded is not None:
            (checkpoint, written), self.unrecorded = self.unrecorded, None

            def mark() -> dict[str, float]:
                self.observer.flush()
                return checkpoints.declare_whole(checkpoint, self.save_started, written)

            with_thread = ThreadPoolExecutor(1)
            self.being_marked = with_thread.submit(mark)
            with_thread.shutdown(wait=False)

    def finish_saves(self, blocking: bool) -> None:
        """Rotate the whole checkpoints (blocking: after the one in the making). Raises OSError where it has no room."""
        if self.being_marked is not None and (blocking or self.being_marked.done()):
            self.saved, self.being_marked = self.being_marked.result(), None
        checkpoints.rotate(Path(self.config.retool.stage_dir), **self.config.retool.rotation)

    def _step_once(self, metrics, timing_raw, sample_batch_size):
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        self.parts.append(dict(metrics))
        return batch

    def step(self, metrics, timing_raw):
        self.observer.begin_step()
        self.parts: list[dict[str, float]] = []
        batch = super().step(metrics, timing_raw)
        metrics |= whole_step(self.parts)  # in which verl takes the mean over the step's parts
        if ending := self.alarms.judge(self.global_steps, metrics):
            # Before the weights are saved or pushed, and with what the step was on the disk.
            timing_raw["step"] = time.time() - self.observer.started
            self._compute_metrics(batch, metrics, timing_raw, global_steps=self.global_steps, epoch=0)
            self.logger.log(data=metrics, step=self.global_steps)
            self._end(ending)
        return batch

    def _build_replay_buffer(self):
        return build_replay_buffer(self)

    def _balance_batch(self, batch, metrics, **options):
        batch = super()._balance_batch(batch, metrics, **options)  # fills the last mini-batch with padding
        actor = self.config.actor_rollout_ref.actor
        rows = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        cut = Cut(len(batch), rows, ranks=max(self.actor_rollout_wg._dispatch_info["actor"]) + 1)
        metrics |= mini_batches.shuffle(batch, cut, seed=actor.data_loader_seed, step=self.global_steps)
        self.observer.cut = cut
        return batch

    def _compute_old_log_prob(self, batch, metrics):
        """Of the trainer, or with `correction=bypass` those of the rollout engine: then the trainer's own pass, made
        every `correction.log_probs_every` steps, is for the metrics alone."""
        self.observer.read_ahead(batch)
        every, correction = self.config.retool.log_probs_every, self.config.algorithm.rollout_correction
        self.observer.own_log_probs = (self.global_steps - 1) % every == 0
        correction.bypass_mode = not self.observer.own_log_probs  # verl's word for it
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        if every > 1 and self.observer.own_log_probs:
            metrics |= bypass.restore_engines(batch, correction)
            correction.bypass_mode = True
        return batch

    def _compute_advantage(self, batch, metrics):
        metrics |= self.recipe_step.before_advantages(batch, self.global_steps)
        batch = super()._compute_advantage(batch, metrics)
        if self.config.algorithm.rollout_correction.rollout_rs:
            count_rejected(batch)
        self.recipe_step.after_advantages(batch)
        return batch

    def _update_actor(self, batch, metrics):
        batch = self.observer.before_update(batch, self.global_steps, metrics, self.timing_raw)
        if self.alarms.skips(metrics):
            metrics["actor/skipped_updates"] = 1.0
            return batch
        try:
            return super()._update_actor(batch, metrics)
        except MaskAuditError as error:
            raise self.observer.after_refused_update(getattr(error, "cause", error)) from error

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        metrics |= {f"push/{'verify_' * (name == 'seconds')}{name}": value for name, value in self.pushed.items()}
        metrics |= self.saved | {"curriculum/retired": len(self.curriculum.retired)}
        metrics["curriculum/passed_over"] = self.curriculum.passed_over
        self.saved, self.curriculum.passed_over = {}, 0
        tensorboard = self.logger.logger.get("tensorboard")
        board = tensorboard and tensorboard.writer  # verl's own: a second file of events would hide the first's end
        gpus = () if self.config.trainer.device == "cpu" else self.actor_rollout_wg.take_gpu_samples()
        wandb = self.logger.logger.get("wandb")
        if wandb and not isinstance(wandb, Overview):
            wandb = self.logger.logger["wandb"] = Overview(wandb, "rl")
        self.observer.end_step(batch, global_steps, metrics, timing_raw, board, self.tokenizer, gpus, wandb)
        self.ending = self.alarms.judge(global_steps, metrics, ("reward",))
        self.alarms.end_step(global_steps, metrics)


class RetoolTrainer(Validating, TakeOver, RetoolTrainerMixin, PPOTrainerSync):
    """Rollout, then training, on the same devices; an interrupted step goes on with what was finished of it."""
