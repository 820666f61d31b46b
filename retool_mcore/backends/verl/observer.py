"""What the trainer sees of its own steps: the mask audit, behaviour metrics, trajectories on disk and the timeline.

The trainer calls it at five places of a step; nothing here changes what is trained.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from verl.utils.debug import marked_timer

from retool_mcore.backends.verl.audited_loss import INTERPRETER, POLICY, PREDICTED, SPAN_KIND
from retool_mcore.backends.verl.batch import StepBatch, put_column, read_batch, read_notes
from retool_mcore.backends.verl.mini_batches import Cut, order_correlation
from retool_mcore.metrics.audit import Fault, MaskAuditError, NotFinite, audit, not_finite, span_mask
from retool_mcore.metrics.behaviour import behaviour, by_source, histograms
from retool_mcore.metrics.records import write_step
from retool_mcore.metrics.sandbox import grader_metrics, latencies_s, sandbox_metrics
from retool_mcore.metrics.text import TABLE, chosen, markdown, speller, table
from retool_mcore.metrics.timeline import chrome_trace, idle_shares, shares, stage_figures, write_trace
from retool_mcore.metrics.writer import TrajectoryWriter
from retool_mcore.recipes.columns import real_keys

KEPT_TRACES = 20


class StepObserver:
    """retool: the section of the configuration with stage_dir, trajectories, keep_trajectory_bytes, texts, recipe."""

    def __init__(self, retool) -> None:
        self.stage_dir = Path(retool.stage_dir)
        # A recipe may want observations predicted: then they are in the loss on purpose.
        self.predicted = float(retool.recipe.observation_weight) > 0
        self.writer = TrajectoryWriter(Path(retool.trajectories), retool.keep_trajectory_bytes)
        self.texts = retool.texts
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
                raise self._mask_audit_error(seen, fault)
            policy, _ = spans  # type: ignore[misc]  # without a fault they are spans
            if (broken := not_finite(seen.columns, seen.records, policy)) is not None:
                print(self._told_of(seen, broken), flush=True)
            kinds = np.where(policy, POLICY, PREDICTED if self.predicted else INTERPRETER).astype(np.int8)
            rows = dict(zip(seen.keys, np.split(kinds, seen.columns.offsets[1:-1]), strict=True))
            return put_column(batch, SPAN_KIND, rows, padding=INTERPRETER)

    def after_refused_update(self, error: MaskAuditError) -> MaskAuditError:
        """The error of a worker's audit with the trajectory on the disk, where the batch has it."""
        for seen in self.batches:
            if error.key in (names := [key.rsplit("_", 1)[0] for key in seen.keys]):
                row = names.index(error.key)
                return self._mask_audit_error(seen, Fault(error.what, row, error.token), error.where)
        return error

    def end_step(self, batch, step: int, metrics: dict, timing: dict, board=None, tokenizer=None, gpus=(), wandb=None):
        """Metrics of the whole step; hands the trajectories to the writer.

        board: TensorBoard's SummaryWriter; wandb: the module, with a run; gpus: of every rank the samples of its GPU
        (metrics/timeline.py).
        """
        clock = time.perf_counter()
        if not self.batches:  # a step without an update of the actor, while only the critic warms up
            self.batches.append(self._read(batch, step))
        records = [record for seen in self.batches for record in seen.records]
        metrics |= {f"behaviour/{name}": value for name, value in behaviour(records).items()}
        if self.cut is not None:
            metrics |= order_correlation([record["mini_batch"] for record in records], records)
        metrics["reward/accuracy"] = float(np.mean([record["acc"] for record in records]))
        metrics |= {f"sandbox/{name}": value for name, value in sandbox_metrics(records).items()}
        metrics |= {f"grader/{name}": value for name, value in grader_metrics(records).items()}
        if board is not None and (waits := latencies_s(records)):
            board.add_histogram("sandbox/latency_s", np.asarray(waits, np.float64), step)
        sources = by_source(records)
        for source, own in sources.items():
            metrics |= {f"behaviour/{source}/{name}": value for name, value in behaviour(own).items()}
            metrics[f"reward/{source}/accuracy"] = float(np.mean([record["acc"] for record in own]))
            for name, sample in histograms(own).items() if board is not None else ():
                board.add_histogram(f"behaviour/{source}/{name}", np.asarray(sample, np.float64), step)
        metrics |= shares(timing, records)
        metrics |= idle_shares(gpus, self.started, self.started + timing["step"])
        metrics |= stage_figures(records)
        # Of an average trajectory: the sum over all of them says nothing about the step.
        metrics["timing_s/tools"] = float(np.mean([record["tool_s"] for record in records]))
        if sent := sum(record["resent"][0] for record in records if "resent" in record):
            lost = sum(record["resent"][1] for record in records if "resent" in record)
            metrics["rollout/resent_missed_share"] = lost / sent
        tokens = sum(len(record["prompt_ids"]) + len(record["response_ids"]) for record in records)
        metrics["perf/tokens_per_second"] = tokens / timing["step"]
        trace = chrome_trace(step, self.started, timing, records, gpus)
        write_trace(self.stage_dir / "trace", step, trace, keep=KEPT_TRACES)
        shown = tokenizer is not None and self.texts.every and step % self.texts.every == 0
        if shown and wandb is not None:
            few = chosen(records, self.texts.count)
            wandb.log({"trajectories": wandb.Table(TABLE, table(few, speller(tokenizer)))}, step=step)
        if shown and board is not None:
            self.writer.write(step, records, lambda: self._show(Path(board.log_dir) / "text", step, records, tokenizer))
        else:
            self.writer.write(step, records)
        metrics["timing_s/observe"] = time.perf_counter() - clock

    def flush(self) -> None:
        """Wait until the trajectories that were handed to the writer are on the disk."""
        self.writer.flush()

    def close(self) -> None:
        """Wait until the trajectories of all steps are on the disk. To be called however the training ends."""
        self.writer.close()

    def _show(self, folder: Path, step: int, records: list[dict], tokenizer) -> None:
        """A few trajectories for TensorBoard's text tab: files of their own, since verl's may be closed already."""
        few, decode = chosen(records, self.texts.count), speller(tokenizer)
        with SummaryWriter(folder) as board:
            for number, record in enumerate(few):
                board.add_text(f"trajectory/{number}", markdown(record, decode), step)

    def _mask_audit_error(self, seen: StepBatch, fault: Fault, where: str = "before the update") -> MaskAuditError:
        return MaskAuditError(fault.what, self._kept(seen.records[fault.row]), fault.token, where)

    def _told_of(self, seen: StepBatch, broken: NotFinite) -> str:
        """The line about values that are not finite. What the update does with them is the alarm `nan`'s to answer."""
        first = self._kept(seen.records[broken.row])
        return (
            f"{broken.column} of {broken.rows} of {len(seen.records)} trajectories are not finite (NaN or infinite), "
            f"first in trajectory {first}, response token {broken.token}: {broken.look_at}."
        )

    def _kept(self, record: dict) -> str:
        """Write a trajectory to the folder of the audit; its name, and where it is shown."""
        path = write_step(self.stage_dir / "audit", record["step"], [record])
        look = f"`retool view {self.stage_dir.parent} --audit` shows it at #/t/{record['step']}/0"
        return f"{record['uid']}_{record['sample']} of step {record['step']} (in {path}; {look})"
