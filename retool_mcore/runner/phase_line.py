"""One line of what a running stage does: its phase, the share done, the time left and that of the next save."""

import time
from pathlib import Path
from typing import Any

from retool_mcore.state import checkpoints, heartbeat

MIN_SHARE = 0.02  # the time left is reported from here on


def phase_line(stage_dir: Path, now_s: float | None = None) -> str:
    """Return a line such as "generation 61 % (5,012 trajectories finished, 3,180 live, 41,200 tokens/s), 8 min left,
    save in 23 min".

    "" before the first beat. Figures that no process has reported are left out. now_s: seconds since the epoch; None:
    now.
    """
    beats = heartbeat.read(stage_dir)
    if heartbeat.TRAINER not in beats:
        return ""
    now_s = time.time() if now_s is None else now_s
    trainer = beats[heartbeat.TRAINER]
    since, share, text = trainer["since"], _share(stage_dir, beats), trainer["phase"]
    if share:
        text += f" {100 * share:.0f} %"
    if trainer["phase"] in heartbeat.SAMPLING and (rollouts := _rollouts(beats, since)):
        text += f" ({rollouts})"
    before = trainer.get("before", 0)  # of an earlier attempt, which took none of this one's time
    here = share - (before / trainer["total"] if before else 0.0)
    if here >= MIN_SHARE:
        text += f", {duration((now_s - since) * (1 - share) / here)} left"
    if trainer.get("next_save"):
        text += f", save in {duration(trainer['next_save'] - now_s)}"
    return text


def bytes_saved(stage_dir: Path) -> int:
    """Return the bytes of the checkpoint that is being written; 0 for none."""
    unfinished = checkpoints.unfinished(stage_dir / "checkpoints")
    return checkpoints.folder_bytes(unfinished) if unfinished else 0


def duration(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def _share(stage_dir: Path, beats: dict[str, dict[str, Any]]) -> float:
    """Done of the phase, from 0 to 1; 0 where it is not known."""
    trainer, rank = beats[heartbeat.TRAINER], beats.get(heartbeat.RANK)
    if trainer["phase"] == heartbeat.SAVE:
        last = checkpoints.latest(stage_dir / "checkpoints")
        return min(bytes_saved(stage_dir) / max(checkpoints.folder_bytes(last), 1), 1.0) if last else 0.0
    if trainer["total"]:
        return min(trainer["done"] / trainer["total"], 1.0)
    if rank is None or not rank["total"] or rank["time"] < trainer["since"]:
        return 0.0
    # The rank counts the micro-batches of one optimizer step; of these an update may have several.
    parts = trainer.get("parts", 1) if trainer["phase"] == heartbeat.UPDATE else 1
    return ((rank["updates"] - 1) % parts + min(rank["done"] / rank["total"], 1.0)) / parts


def _rollouts(beats: dict[str, dict[str, Any]], since: float) -> str:
    agents = [beat for name, beat in beats.items() if name.startswith("agent-") and beat["time"] >= since]
    if not agents:
        return ""
    # An agent whose trajectories failed before their first turn has reported no speed.
    finished, live, speed = (sum(beat.get(name, 0) for beat in agents) for name in ("finished", "live", "tokens_per_s"))
    return f"{finished:,} trajectories finished, {live:,} live, {speed:,.0f} tokens/s"
