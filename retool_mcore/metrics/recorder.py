"""The record of a step: behaviour metrics, trajectories on disk, the timeline, a few texts for TensorBoard."""

import time
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from retool_mcore.metrics.audit import Fault, MaskAuditError, NotFinite
from retool_mcore.metrics.behaviour import behaviour, by_source, histograms
from retool_mcore.metrics.gateway import gateway_metrics, main_records
from retool_mcore.metrics.order import order_correlation
from retool_mcore.metrics.records import write_step
from retool_mcore.metrics.sandbox import grader_metrics, latencies_s, sandbox_metrics
from retool_mcore.metrics.text import TABLE, chosen, markdown, speller, table
from retool_mcore.metrics.timeline import chrome_trace, idle_shares, shares, stage_figures, write_trace
from retool_mcore.metrics.writer import TrajectoryWriter

KEPT_TRACES = 20


class StepRecorder:
    """retool: the section of the configuration with stage_dir, trajectories, keep_trajectory_bytes and texts."""

    def __init__(self, retool) -> None:
        self.stage_dir = Path(retool.stage_dir)
        self.writer = TrajectoryWriter(Path(retool.trajectories), retool.keep_trajectory_bytes)
        self.texts = retool.texts

    def record_step(
        self, step: int, started: float, records: list[dict], metrics: dict, timing: dict,
        *, board=None, tokenizer=None, gpus=(), wandb=None,
    ) -> None:  # fmt: skip
        """Add the metrics of the whole step to `metrics`; hand its `records` (metrics/records.py) to the writer.

        started: seconds since the epoch; timing: seconds by phase, "step" among them. board: TensorBoard's
        SummaryWriter; wandb: the module, with a run; gpus: of every rank the samples of its GPU (metrics/timeline.py).
        """
        clock = time.perf_counter()
        episodes = main_records(records)
        metrics |= {f"behaviour/{name}": value for name, value in behaviour(episodes).items()}
        metrics |= {f"gateway/{name}": value for name, value in gateway_metrics(records).items()}
        if all("mini_batch" in record for record in records):
            metrics |= order_correlation([record["mini_batch"] for record in records], records)
        metrics["reward/accuracy"] = float(np.mean([record["acc"] for record in episodes]))
        metrics |= {f"sandbox/{name}": value for name, value in sandbox_metrics(records).items()}
        metrics |= {f"grader/{name}": value for name, value in grader_metrics(records).items()}
        if board is not None and (waits := latencies_s(records)):
            board.add_histogram("sandbox/latency_s", np.asarray(waits, np.float64), step)
        sources = by_source(episodes)
        for source, own in sources.items():
            metrics |= {f"behaviour/{source}/{name}": value for name, value in behaviour(own).items()}
            metrics[f"reward/{source}/accuracy"] = float(np.mean([record["acc"] for record in own]))
            for name, sample in histograms(own).items() if board is not None else ():
                board.add_histogram(f"behaviour/{source}/{name}", np.asarray(sample, np.float64), step)
        metrics |= shares(timing, records)
        metrics |= idle_shares(gpus, started, started + timing["step"])
        metrics |= stage_figures(records)
        # Of an average trajectory: the sum over all of them says nothing about the step.
        metrics["timing_s/tools"] = float(np.mean([record["tool_s"] for record in records]))
        if sent := sum(record["resent"][0] for record in records if "resent" in record):
            lost = sum(record["resent"][1] for record in records if "resent" in record)
            metrics["rollout/resent_missed_share"] = lost / sent
        tokens = sum(len(record["prompt_ids"]) + len(record["response_ids"]) for record in records)
        metrics["perf/tokens_per_second"] = tokens / timing["step"]
        trace = chrome_trace(step, started, timing, records, gpus)
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

    def refused(self, record: dict, fault: Fault, where: str = "before the update") -> MaskAuditError:
        """Write the trajectory that the mask audit refused to disk; return the error that names its file."""
        return MaskAuditError(fault.what, self._kept(record), fault.token, where)

    def not_finite(self, records: list[dict], broken: NotFinite) -> str:
        """Write the first trajectory whose values are not finite to disk; return the line about them. What the update
        does with them is the alarm `nan`'s to answer."""
        first = self._kept(records[broken.row])
        return (
            f"{broken.column} of {broken.rows} of {len(records)} trajectories are not finite (NaN or infinite), "
            f"first in trajectory {first}, response token {broken.token}: {broken.look_at}."
        )

    def _kept(self, record: dict) -> str:
        """Write a trajectory to the folder of the audit; its name, and where it is shown."""
        path = write_step(self.stage_dir / "audit", record["step"], [record])
        look = f"`retool view {self.stage_dir.parent} --audit` shows it at #/t/{record['step']}/0"
        return f"{record['uid']}_{record['sample']} of step {record['step']} (in {path}; {look})"
