"""How long every GPU of the trainer idled in a step, by the driver's own measure.

Sampled beside the work in each of the trainer's processes, of which a GPU has one; where rollout and training share the
GPUs, generation counts as work as well, since the driver asks the device and not the process.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

EVERY_S = 0.5  # the driver's own period is between 1/6 and 1 second
_KEPT = 200_000  # samples of one GPU that nobody has asked for: a day
_SHOWN = 500  # points of one GPU on the timeline of a step

Samples = Sequence[tuple[float, float]]  # (seconds since 1970, busy share in [0, 1])


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
    """What tells this process's current GPU's busy share (NVML: the time in which a kernel ran); None without CUDA."""
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
    found = {}
    for rank, samples in enumerate(ranks):
        within = [busy for moment, busy in samples if start <= moment <= end]
        if within:
            found[f"gpu_idle/rank_{rank}"] = 1 - float(np.mean(within))
    if found:
        values = list(found.values())
        found |= {"gpu_idle/mean": float(np.mean(values)), "gpu_idle/max": max(values)}
    return found


def counters(ranks: Sequence[Samples], started: float, process: int) -> list[dict]:
    """Counter events of Chrome's trace format, one track a GPU, times in microseconds since `started`."""
    events = []
    for rank, samples in enumerate(ranks):
        for moment, busy in samples[:: max(1, len(samples) // _SHOWN)]:
            if moment >= started:
                place = {"name": f"GPU {rank} busy", "ph": "C", "pid": process, "ts": round((moment - started) * 1e6)}
                events.append(place | {"args": {"percent": round(100 * busy)}})
    return events
