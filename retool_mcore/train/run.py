"""The parts of a run around its steps: phases, stop requests, alarms, checkpoints and the record."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from retool_mcore.data.prompt_stream import Asked, Prompts
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.metrics.audit import Fault, MaskAuditError
from retool_mcore.metrics.charts import Overview
from retool_mcore.metrics.recorder import StepRecorder
from retool_mcore.metrics.step import data_metrics, staleness_metrics, timing_metrics
from retool_mcore.recipes.fewest_calls import FewestCalls
from retool_mcore.recipes.filters import GroupFilter
from retool_mcore.rollout import unfinished
from retool_mcore.rollout.groups import Groups
from retool_mcore.rollout.samples import Group
from retool_mcore.state import alarms, heartbeat, stop
from retool_mcore.state.policy_identity import IDENTITY, PolicyIdentity
from retool_mcore.state.schedule import Schedule
from retool_mcore.train.batch import Batch
from retool_mcore.train.saves import Saves
from retool_mcore.train.settings import Settings


class Loggers(Protocol):
    """Where metrics go; `logger` holds the backends by name."""

    logger: dict[str, Any]

    def log(self, data: dict, step: int) -> None: ...


class Traces(Protocol):
    """Where episodes are sent (train/traces.py)."""

    def add(self, group: Group) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class Run:
    """One attempt, which goes on after step `start`.

    retool: the section with stage_dir, trajectories, texts, rotation, alarms, save_minutes, recipe; identity: of the
    policy that the attempt starts with, None where no checkpoint is ever written; traces: where episodes are sent.
    """

    def __init__(
        self, cfg: Settings, retool, log: Loggers, start: int, identity: PolicyIdentity | None,
        traces: Traces | None = None,
    ):  # fmt: skip
        self.cfg, self.stage_dir, self.log, self.identity = cfg, Path(retool.stage_dir), log, identity
        self.traces = traces
        self.start = self.saved_step = start
        self.total = cfg.steps
        self.recorder = StepRecorder(retool)
        self.alarms = alarms.Alarms(retool.alarms, self.stage_dir, start, cfg.batch // cfg.mini_batch)
        self.schedule = Schedule(retool.get("save_minutes"), cfg.save_every)
        self.saves = Saves(self.stage_dir, retool.rotation, self.recorder.flush)
        self.fewest_calls = FewestCalls(self.stage_dir / "fewest_calls.jsonl", first_step=start + 1)
        self.timing: dict[str, float] = {}
        self.records: list[dict] = []
        self.began, self.validating_s = time.monotonic(), 0.0

    @contextmanager
    def phase(self, name: str, key: str | None = None) -> Iterator[None]:
        """The phase `name` begins: a heartbeat, and with `key` the seconds of its body as timing_s/KEY."""
        heartbeat.beat(heartbeat.TRAINER, name)
        clock = time.perf_counter()
        try:
            yield
        finally:
            if key:
                self.timing[key] = self.timing.get(key, 0.0) + time.perf_counter() - clock

    def steps(self) -> Iterator[int]:
        """The steps that are left. Raises StopRequested where it is asked for and the last step is saved."""
        step = self.start
        while step < self.total:
            step += 1
            self.schedule.begin_step(step, parts=self.cfg.batch // self.cfg.mini_batch)
            if self.saved_step == step - 1 and stop.requested(self.stage_dir):
                self.saves.finish(blocking=True)
                raise stop.StopRequested(self.saved_step)
            self.timing, self.records = {}, []
            self.started, self.clock = time.time(), time.perf_counter()
            yield step
        self.saves.finish(blocking=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return time.perf_counter() - self.clock

    def own_log_probs(self, step: int) -> bool:
        """Whether the trainer computes the log-probabilities of this step's tokens itself."""
        return (step - 1) % self.cfg.log_probs_every == 0

    def verifies(self, step: int) -> bool:
        """Whether the push after this step is compared bit by bit."""
        return bool(self.cfg.verify_every) and (step - self.start) % self.cfg.verify_every == 0

    def validates(self, step: int) -> bool:
        """Whether the policy after this step is validated; not where somebody waits for the run to stop."""
        every = self.cfg.validate_every
        return every > 0 and (step == self.total or step % every == 0) and not stop.requested(self.stage_dir)

    def saves_at(self, step: int) -> bool:
        """Whether the policy after this step is saved."""
        if not self.schedule.another_fits():
            stop.request(self.stage_dir)
        every = self.cfg.save_every
        regular = every > 0 and (step == self.total or step % every == 0)
        return regular or self.schedule.due() or stop.requested(self.stage_dir)

    def folder(self, step: int) -> str | None:
        """Where rollout workers keep what they finish of what `step` asked for, and find what an attempt before did:
        of this very policy, or where rollouts run ahead, of these settings."""
        if self.identity is None:
            return None
        name = self.identity.settings[:16] if self.cfg.staleness else self.identity.policy
        return str(unfinished.folder_of(self.stage_dir, step, name))

    def options(self, step: int) -> dict:
        """Return the options of a rollout of the groups that `step` requests."""
        return {"n": self.cfg.n, "sampling": dict(self.cfg.sampling), "keep": self.folder(step)}

    def groups(self, rollouts, prompts: Prompts) -> Groups:
        """The groups of the run's steps."""
        judge = GroupFilter(self.cfg.recipe["filters"], self.cfg.sandbox_errors, self.cfg.batch, self.cfg.n)
        return Groups(
            rollouts, prompts, judge, self.options, batch=self.cfg.batch, staleness=self.cfg.staleness,
            seen=self.traces.add if self.traces else None,
        )  # fmt: skip

    def save(self, step: int, engines, prompts: Prompts, pending: list[Asked]) -> None:
        """Write a checkpoint of the policy after `step`. It counts once the step is recorded.

        pending: what is asked for and not taken.
        """
        if self.alarms.leads_back and step < self.total:
            print(f"Step {step} is not saved: the next may have to go back behind it.", flush=True)
            return

        def write(checkpoint: Path) -> None:
            engines.save(checkpoint, step)
            prompts.save(checkpoint, pending)
            if self.identity:
                write_atomically(checkpoint / IDENTITY, self.identity.link)

        with self.phase(heartbeat.SAVE, "save_checkpoint"):
            seconds = self.saves.write(step, min((asked for _, asked, *_ in pending), default=step + 1), write)
        self.saved_step = step
        self.schedule.save_ended(seconds)

    @contextmanager
    def saves_trained(self, step: int, engines, prompts: Prompts, pending: list[Asked]) -> Iterator[None]:
        """Where a UserError ends the body, which changes no weights, first save the policy after `step` if it is not.

        prompts, pending: as they were at the end of that step.
        """
        try:
            yield
        except UserError:
            if self.cfg.save_every > 0 and self.saved_step != step:
                engines.end_rollouts()
                self.save(step, engines, prompts, pending)
                self.saves.recorded()
            self.saves.finish(blocking=True)
            raise

    def trained(self) -> None:
        """The policy is another now: what it samples from here on is not taken for the old one's."""
        if self.identity:
            self.identity.advance(self.records)

    def refused(self, fault: Fault, place: int, where: str = "before the update") -> MaskAuditError:
        """The error of a batch that the mask audit refuses, with the trajectory at `place` of the records on disk."""
        return self.recorder.refused(self.records[place], fault, where)

    def record(self, step: int, parts: list[Batch], metrics: dict, engines) -> alarms.Ended | None:
        """Log the step, hand its trajectories to the writer; the alarm that ends the run, if one fires only now."""
        batch = Batch.join(parts)
        heartbeat.beat(heartbeat.TRAINER, "metrics")
        self.timing.setdefault("step", self.elapsed_s)
        metrics |= self._figures(step, batch, engines) | self.saves.report()
        metrics |= self.traces.metrics() if self.traces else {}
        tensorboard, wandb = self.log.logger.get("tensorboard"), self.log.logger.get("wandb")
        if wandb and not isinstance(wandb, Overview):
            wandb = self.log.logger["wandb"] = Overview(wandb, "rl")
        board = tensorboard and tensorboard.writer  # its own file would hide the first's end
        self.recorder.record_step(
            step, self.started, self.records, metrics, self.timing,
            board=board, tokenizer=engines.tokenizer, gpus=engines.gpu_samples(), wandb=wandb,
        )  # fmt: skip
        ending = self.alarms.judge(step, metrics, ("reward",))
        self.alarms.end_step(step, metrics)
        self.log.log(data=metrics, step=step)
        self.saves.recorded()
        return ending

    def end(self, ending: alarms.Ended, step: int, prompts: Prompts) -> None:
        """An alarm ends the run: raise it, once it is known where the run goes back to."""
        self.saves.finish(blocking=True)
        if ending.answer == "back":
            alarms.go_back(self.stage_dir, step, self.saved_step, prompts.fetched, str(ending))
        raise ending

    def close(self) -> None:
        """Wait until the trajectories of all steps are on the disk. To be called however the run ends."""
        self.recorder.close()
        if self.traces:
            self.traces.close()

    def _figures(self, step: int, batch: Batch, engines) -> dict[str, float]:
        taken = sum(bool(record.get("taken_over")) for record in self.records)
        if taken:
            print(f"step {step}: {taken} of {len(self.records)} trajectories taken over from the attempt before")
        values = batch.padded("values") if "values" in batch else None
        episodes = batch.firsts  # of an agent's several rows the first
        metrics = data_metrics(
            batch.rewards[episodes], batch.padded("advantages"), batch.padded("returns"), batch.padded("response_mask"),
            batch.prompt_lengths, batch.lengths, np.array([batch.samples[row].turns for row in episodes]), values,
        )  # fmt: skip
        metrics |= timing_metrics(
            self.timing, int(batch.prompt_lengths.sum()), int(batch.lengths.sum()), engines.n_gpus
        )
        first, last = np.array([sample.versions for sample in batch.samples]).T
        metrics |= staleness_metrics(step, first, last)
        return metrics | {"training/global_step": step, "training/epoch": 0, "rollout/taken_over": taken}
