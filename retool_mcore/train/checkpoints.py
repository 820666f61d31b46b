"""Which checkpoint is whole, and what the last one is.

verl writes `global_step_N/` piece by piece and then a tracker file, in place: a process killed in between leaves a half
checkpoint or an empty tracker. Here a checkpoint counts only once its COMPLETE file exists, which is written last and
atomically; `repair` makes verl's tracker agree with that before a trainer starts.

Layout under a stage's `checkpoints/`: `global_step_N/[actor/]{model/huggingface,optimizer,extra}`, COMPLETE.
"""

import os
import re
import shutil
from pathlib import Path

MARK = "COMPLETE"
TRACKER = "latest_checkpointed_iteration.txt"  # verl/utils/checkpoint/checkpoint_manager.py:255


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader, or a crash, sees the old file or the new one, whole."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    with open(part, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def mark_complete(checkpoint: Path) -> None:
    """Declare `checkpoint` whole. Call it once, after the last of its files is written."""
    write_atomically(checkpoint / MARK, "")


def step_of(checkpoint: Path) -> int:
    return int(re.fullmatch(r"global_step_(\d+)", checkpoint.name).group(1))


def complete(root: Path) -> list[Path]:
    """Whole checkpoints under `root`, oldest first. One whose weights were rotated away does not count."""
    found = [path.parent for path in root.glob(f"global_step_*/{MARK}")]
    return sorted((path for path in found if policy_folder(path).is_dir()), key=step_of)


def latest(root: Path) -> Path | None:
    return (complete(root) or [None])[-1]


def repair(root: Path) -> Path | None:
    """Point verl's tracker at the last whole checkpoint, remove half-written ones after it, return it."""
    last = latest(root)
    for path in root.glob("global_step_*"):
        if last is None or step_of(path) > step_of(last):
            shutil.rmtree(path)
    if last is not None:
        write_atomically(root / TRACKER, str(step_of(last)))
    else:
        (root / TRACKER).unlink(missing_ok=True)
    return last


def policy_folder(checkpoint: Path) -> Path:
    """The Hugging Face folder (weights, config, tokenizer) inside a checkpoint of SFT or RL."""
    inner = checkpoint / "actor" if (checkpoint / "actor").is_dir() else checkpoint
    return inner / "model" / "huggingface"


def link_policy(stage_dir: Path) -> Path:
    """Make `stage_dir`/policy name the last whole checkpoint's Hugging Face folder, for the stages that follow."""
    target = policy_folder(latest(stage_dir / "checkpoints"))
    link, part = stage_dir / "policy", stage_dir / "policy.part"
    part.unlink(missing_ok=True)
    part.symlink_to(os.path.relpath(target, stage_dir))
    os.replace(part, link)
    return link


def policy_step(path: Path) -> int:
    """The training step of a policy that lies in a checkpoint folder, 0 elsewhere."""
    steps = [step_of(p) for p in path.resolve().parents if p.name.startswith("global_step_")]
    return steps[0] if steps else 0
