"""Where a step's time went: shares for TensorBoard, and a timeline for chrome://tracing or ui.perfetto.dev.

The trainer's phases are verl's timers, which give durations; they follow one another in the order of PHASES from the
step's start, so their places on the timeline are exact but for what is between them ("other"). Rollouts are placed by
their own clocks: the start of the episode and the seconds of every turn. Those that an earlier attempt at the step had
finished took none of its time, and are left out. How long every GPU of the trainer idled is the driver's own measure,
sampled during the work in each of the trainer's processes (one a GPU); where rollout and training share the
GPUs, generation counts as work as well, since the driver asks the device and not the process.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from retool_mcore.files import write_atomically
from retool_mcore.metrics.behaviour import queued_s

# verl's timer -> the part of a step, in the order in which they run (verl/trainer/ppo/v1/trainer_base.py).
PHASES = {
    "gen": "rollout",
    "reward": "reward",
    "old_log_prob": "log_probs",
    "ref": "log_probs",
    "values": "log_probs",
    "adv": "advantages",
    "audit": "audit",
    "update_critic": "update",
    "update_actor": "update",
    "save_checkpoint": "checkpoint",
    "update_weights": "weight_push",
}
_GPU_WORK = ("generation", "log_probs", "update", "weight_push")
Samples = Sequence[tuple[float, float]]  # (seconds since 1970, busy share in [0, 1])
_SHOWN = 200  # trajectories of a step on the timeline, the longest


def shares(timing: Mapping[str, float], records: Sequence[Mapping]) -> dict[str, float]:
    """Return each part's share of the step, keys `timing_share/PART`; all but `engine_waits` and `no_gpu_work` add up
    to 1.

    timing: verl's timers in seconds, including "step"; "audit" runs inside "update_actor" and is subtracted from it.
    The rollout is split by the trajectories' clocks: `generation` while at least one trajectory generates, `tools`
    while none generates and at least one runs a program, `rollout_rest` (rewards, starts, queues) the remainder.
    `engine_waits` is 1 - trajectories that generate / trajectories, averaged over the rollout: how empty the engine is
    because of programs and of the longest trajectories. `no_gpu_work` is the time in which no GPU has work: no
    trajectory generates, and neither a forward nor a backward pass nor a weight push runs. Where rollout and training
    share the GPUs, each GPU idles for at least that time; gpu_idle/ (metrics/timeline.py) reports how long exactly,
    where there is a GPU. {} without a step.
    """
    step = timing.get("step", 0.0)
    if step <= 0:
        return {}
    records = _own(records)
    parts = dict.fromkeys([*PHASES.values(), "generation", "tools", "rollout_rest"], 0.0)
    for name, part in PHASES.items():
        parts[part] += timing.get(name, 0.0)
    parts["update"] -= timing.get("audit", 0.0)
    rollout = parts.pop("rollout")
    generating, running = (_intervals(records, kind) for kind in ("generate", "tool"))
    generation = min(_union(generating), rollout)
    parts["generation"] = generation
    parts["tools"] = max(min(_union(np.concatenate([generating, running])), rollout) - generation, 0.0)
    parts["rollout_rest"] = rollout - parts["generation"] - parts["tools"]
    parts["other"] = max(step - sum(parts.values()), 0.0)
    result = {f"timing_share/{part}": seconds / step for part, seconds in parts.items()}
    work = sum(parts[part] for part in _GPU_WORK)
    result["timing_share/no_gpu_work"] = max(0.0, 1 - work / step)
    if records and rollout > 0:
        busy = (generating[:, 1] - generating[:, 0]).sum() / (len(records) * rollout)
        result["timing_share/engine_waits"] = float(np.clip(1 - busy, 0, 1))
    return result


def chrome_trace(
    step: int, started: float, timing: Mapping[str, float], records: Sequence[Mapping], gpus: Sequence[Samples] = ()
) -> dict:
    """The step as an object of Chrome's trace event format, times in microseconds since `started`.

    started: when the step began, seconds since 1970. Of more than 200 trajectories the longest are shown; of a wait for
    tools that in which no program ran ("queued") comes first. gpus: how busy the GPU of each rank was.
    """
    records = _own(records)
    events = [_name(0, "trainer"), _name(1, "trajectories")]
    if any("stages" in record for record in records):
        events.append(_name(2, "stages"))
    clock = 0.0
    for name in (name for name in PHASES if timing.get(name, 0.0) > 0 and name != "audit"):
        if name == "update_actor" and "audit" in timing:
            events.append(_event("audit", "trainer", 0, 0, clock, timing["audit"]))
        events.append(_event(name, "trainer", 0, 0, clock, timing[name]))
        clock += timing[name]
    shown = sorted(records, key=lambda r: r["generate_s"] + r["tool_s"], reverse=True)[:_SHOWN]
    for lane, record in enumerate(sorted(shown, key=lambda r: r["started"])):
        details = {"uid": record["uid"], "sample": record["sample"], "finish": record["finish"], "acc": record["acc"]}
        for span in record.get("stages", ()):
            start, end = span["start"], span["end"]
            args = details | {"waited_s": round(start - span["asked"], 3)}
            events.append(_event(span["stage"], "stage", 2, lane, start - started, end - start, **args))
        waits = queued_s(record)
        for number, (kind, start, end) in enumerate(_phases(record)):
            details["turn"] = turn = number // 2
            if kind == "tool" and (queued := waits[turn]) > 0:
                events.append(_event("queued", "rollout", 1, lane, start - started, queued, **details))
                start += queued
            events.append(_event(kind, "rollout", 1, lane, start - started, end - start, **details))
    events += counters(gpus, started, process=3)
    other = {"step": step, "started": started, "trajectories": len(records), "shown": len(shown)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def stage_figures(records: Sequence[Mapping]) -> dict[str, float]:
    """Return the figures of trajectories that pass through stages (environments/stages.py); {} without any.

    stages/STAGE_s: mean seconds of a trajectory in it; stages/STAGE_wait_s: mean seconds that it waited to enter.
    stages/speed_up: the time in which every stage was in progress, added up, divided by the time in which any was: 1 is
    one after the other, 3 is the most.
    """
    spans = [span for record in records for span in record.get("stages", ()) if span["end"] is not None]
    figures, each_s = {}, 0.0
    for name in dict.fromkeys(span["stage"] for span in spans):
        asked, start, end = np.array([(s["asked"], s["start"], s["end"]) for s in spans if s["stage"] == name]).T
        figures[f"stages/{name}_s"] = float((end - start).mean())
        figures[f"stages/{name}_wait_s"] = float((start - asked).mean())
        each_s += _union(np.stack([start, end], axis=1))
    if any_s := _union(np.array([(span["start"], span["end"]) for span in spans])):
        figures["stages/speed_up"] = each_s / any_s
    return figures


def write_trace(folder: Path, step: int, trace: Mapping, keep: int) -> Path:
    """Write `folder/step_N.json` whole or not at all, remove all but the `keep` highest steps, return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.json"
    write_atomically(path, json.dumps(trace))
    for old in sorted(folder.glob("step_*.json"))[:-keep]:
        old.unlink()
    return path


def _own(records: Sequence[Mapping]) -> list[Mapping]:
    return [record for record in records if not record.get("taken_over")]


def _phases(record: Mapping) -> list[tuple[str, float, float]]:
    """("generate" or "tool", start, end), two a turn, seconds since 1970: an episode does one thing at a time."""
    phases, clock = [], record["started"]
    for turn in record["turn_notes"]:
        for kind in ("generate", "tool"):
            phases.append((kind, clock, clock + turn[f"{kind}_s"]))
            clock += turn[f"{kind}_s"]
    return phases


def _intervals(records: Sequence[Mapping], kind: str) -> np.ndarray:
    """(start, end) of all phases of one kind, (phases, 2) float64."""
    intervals = [(start, end) for record in records for name, start, end in _phases(record) if name == kind]
    return np.array(intervals, np.float64).reshape(-1, 2)


def _union(intervals: np.ndarray) -> float:
    """Seconds covered by at least one interval."""
    if not len(intervals):
        return 0.0
    intervals = intervals[np.argsort(intervals[:, 0])]
    reached = np.maximum.accumulate(intervals[:, 1])
    starts = np.maximum(intervals[1:, 0], reached[:-1])
    first = intervals[0, 1] - intervals[0, 0]
    return float(first + np.maximum(intervals[1:, 1] - starts, 0.0).sum())


def _event(name: str, category: str, process: int, lane: int, start_s: float, seconds: float, **details) -> dict:
    times = {"ts": round(start_s * 1e6), "dur": round(seconds * 1e6)}
    return {"name": name, "cat": category, "ph": "X", "pid": process, "tid": lane, **times, "args": details}


def _name(process: int, name: str) -> dict:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


EVERY_S = 0.5  # the driver's own period is between 1/6 and 1 second
_KEPT = 200_000  # samples of one GPU that nobody has asked for: a day
_POINTS = 500  # points of one GPU on the timeline of a step


class BusySampler:
    """Asks `read` for the device's busy share in [0, 1] every `every_s` seconds, in a thread.

    It ends with the first error of `read`, which it prints: without a figure there is none in the metrics.
    """

    def __init__(self, read: Callable[[], float], every_s: float = EVERY_S) -> None:
        self._read, self._every_s = read, every_s
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="GPU sampler", daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[float, float]]:
        """(seconds since 1970, busy share) of every sample since the last call."""
        # Exchanged, not emptied: the thread may be appending to the old list.
        taken, self._samples = self._samples, []
        return taken

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                sample = (time.time(), self._read())
            except Exception as error:
                print(f"GPU utilisation cannot be read, gpu_idle is not logged: {type(error).__name__}: {error}")
                return
            if len(samples := self._samples) < _KEPT:
                samples.append(sample)


def device_reader() -> Callable[[], float] | None:
    """Return a function that reads the busy share of this process's current GPU (NVML: the time in which a kernel ran);
    None without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    device = torch.cuda.current_device()
    return lambda: torch.cuda.utilization(device) / 100


def idle_shares(ranks: Sequence[Samples], start: float, end: float) -> dict[str, float]:
    """1 - the mean busy share of the samples between `start` and `end`, both in seconds since 1970.

    Keys: gpu_idle/rank_N of the trainer's ranks that have a sample, gpu_idle/mean and gpu_idle/max over them; {}
    without any.
    """
    idle = {}
    for rank, samples in enumerate(ranks):
        within = [busy for moment, busy in samples if start <= moment <= end]
        if within:
            idle[f"gpu_idle/rank_{rank}"] = 1 - float(np.mean(within))
    if idle:
        values = list(idle.values())
        idle |= {"gpu_idle/mean": float(np.mean(values)), "gpu_idle/max": max(values)}
    return idle


def counters(ranks: Sequence[Samples], started: float, process: int) -> list[dict]:
    """Counter events of Chrome's trace format, one track a GPU, times in microseconds since `started`."""
    events = []
    for rank, samples in enumerate(ranks):
        for moment, busy in samples[:: max(1, len(samples) // _POINTS)]:
            if moment >= started:
                place = {"name": f"GPU {rank} busy", "ph": "C", "pid": process, "ts": round((moment - started) * 1e6)}
                events.append(place | {"args": {"percent": round(100 * busy)}})
    return events
