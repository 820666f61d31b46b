"""What the trainer sees of its own steps: the mask audit, behaviour metrics, trajectories on disk and the timeline.

The trainer calls it at five places of a step; nothing here changes what is trained.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from verl.utils.debug import marked_timer

from retool_mcore.backends.verl.audited_loss import SPAN_KIND
from retool_mcore.backends.verl.batch import StepBatch, put_column, read_batch, read_notes
from retool_mcore.metrics.audit import INTERPRETER, Fault, MaskAuditError, audit, not_finite, span_kinds, span_mask
from retool_mcore.metrics.recorder import StepRecorder
from retool_mcore.recipes.columns import real_keys
from retool_mcore.recipes.mini_batches import Cut


class StepObserver(StepRecorder):
    """retool: the section of the configuration, as StepRecorder's with recipe."""

    def __init__(self, retool) -> None:
        super().__init__(retool)
        # A recipe may want observations predicted: then they are in the loss on purpose.
        self.predicted = float(retool.recipe.observation_weight) > 0
        self.batches: list[StepBatch] = []
        self.cut: Cut | None = None  # of the batch that is trained on
        self.own_log_probs = True  # old_log_probs are the trainer's, so that they tell the mismatch
        self.started = time.time()
        self.reader, self.ahead = ThreadPoolExecutor(1, "notes"), Future()
        self.ahead.set_result({})

    def begin_step(self) -> None:
        self.started, self.batches = time.time(), []

    def read_ahead(self, batch) -> None:
        """Read what is settled of the trajectories beside the log-probabilities, for which the trainer only waits."""
        self.ahead = self.reader.submit(read_notes, batch)

    def _read(self, batch, step: int) -> StepBatch:
        notes = self.ahead.result()
        seen = read_batch(batch, step, notes if notes.keys() >= set(real_keys(batch)) else read_notes(batch))
        if self.cut is not None:
            before = len(self.batches) * self.cut.rows // self.cut.size
            for record in seen.records:
                record["mini_batch"] = before + self.cut.mini_batch(record["place"])
        return seen

    def before_update(self, batch, step: int, metrics: dict, timing: dict):
        """Audit what the update is about to read, and tell the workers what every token is; returns the batch.

        Raises MaskAuditError, with the trajectory on the disk, when the loss would not receive what was sampled.
        """
        with marked_timer("audit", timing):
            seen = self._read(batch, step)
            self.batches.append(seen)
            spans = span_mask(seen.columns, seen.records)
            found, fault = audit(seen.columns, seen.records, spans)
            metrics |= {name: value for name, value in found.items() if self.own_log_probs or "mismatch/" not in name}
            if fault is not None:
                raise self.refused(seen.records[fault.row], fault)
            policy, _ = spans  # type: ignore[misc]  # without a fault they are spans
            if (broken := not_finite(seen.columns, seen.records, policy)) is not None:
                print(self.not_finite(seen.records, broken), flush=True)
            kinds = span_kinds(policy, self.predicted)
            rows = dict(zip(seen.keys, np.split(kinds, seen.columns.offsets[1:-1]), strict=True))
            return put_column(batch, SPAN_KIND, rows, padding=INTERPRETER)

    def after_refused_update(self, error: MaskAuditError) -> MaskAuditError:
        """The error of a worker's audit with the trajectory on the disk, where the batch has it."""
        for seen in self.batches:
            if error.key in (names := [key.rsplit("_", 1)[0] for key in seen.keys]):
                row = names.index(error.key)
                return self.refused(seen.records[row], Fault(error.what, row, error.token), error.where)
        return error

    def end_step(self, batch, step: int, metrics: dict, timing: dict, board=None, tokenizer=None, gpus=(), wandb=None):
        """Metrics of the whole step; hands the trajectories to the writer.

        board: TensorBoard's SummaryWriter; wandb: the module, with a run; gpus: of every rank the samples of its GPU
        (metrics/timeline.py).
        """
        if not self.batches:  # a step without an update of the actor, while only the critic warms up
            self.batches.append(self._read(batch, step))
        records = [record for seen in self.batches for record in seen.records]
        self.record_step(
            step, self.started, records, metrics, timing, board=board, tokenizer=tokenizer, gpus=gpus, wandb=wandb
        )
