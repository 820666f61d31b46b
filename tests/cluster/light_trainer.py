"""In the place of a stage's program: ends a step every so many seconds, saves, and stops as the real trainers do.

What it does stands in the JSON file that LIGHT names, which it reads again at every step:
    start_s, step_s     seconds until the first step, and of each step
    steps, save_every   in all, and between two saves
    fails_on, fail_at   a node, on which the program fails once that step has ended; in `fails`, a list of attempts
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from retool_mcore.state import stop
from retool_mcore.state.schedule import Schedule

DEFAULTS = {"start_s": 0.0, "step_s": 0.3, "steps": 100_000, "save_every": 5, "fails_on": "", "fail_at": 1, "fails": []}


def settings() -> dict:
    return DEFAULTS | json.loads(Path(os.environ["LIGHT"]).read_text())


def end_if_asked(metrics: Path, step: int) -> None:
    """Fails as a rank does whose link or GPU breaks, where `settings` name this node."""
    now, attempt = settings(), int(metrics.stem.rpartition("_")[2])
    broken = os.environ["SLURMD_NODENAME"] == now["fails_on"] and attempt in now["fails"] and step >= now["fail_at"]
    if broken or metrics.with_suffix(".broken").exists():  # the others lose their peer
        metrics.with_suffix(".broken").touch()
        print("RuntimeError: NCCL error: remote process exited or there was a network error", flush=True)
        sys.exit(1)


def train(folder: Path, metrics: Path) -> int:
    """Steps until the last one or a request; the exit code of a stage."""
    schedule, saved = Schedule(None, 1), folder / "light_step"
    step = int(saved.read_text()) if saved.exists() else 0
    time.sleep(settings()["start_s"])
    while step < (now := settings())["steps"]:
        step += 1
        schedule.begin_step(step)
        time.sleep(now["step_s"])
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "data": {"train/loss": 1.0, "step_seconds": now["step_s"]}}) + "\n")
        end_if_asked(metrics, step)
        if not schedule.another_fits():
            stop.request(folder)
        if stop.requested(folder) or step % now["save_every"] == 0:
            saved.write_text(str(step))
        if stop.requested(folder):
            stop.honour(folder, step)
            return stop.EXIT_CODE
    return 0


def main() -> int:
    folder, metrics = Path(sys.argv[1]).parent, Path(os.environ["VERL_FILE_LOGGER_PATH"])
    print(f"temporary files: {tempfile.mkdtemp()}", flush=True)  # left behind, as engines leave theirs
    over = metrics.with_suffix(".over")
    if os.environ.get("SLURM_PROCID", "0") == "0":
        try:
            return train(folder, metrics)
        finally:
            over.touch()
    while not over.exists():
        end_if_asked(metrics, metrics.read_text().count("\n"))
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
