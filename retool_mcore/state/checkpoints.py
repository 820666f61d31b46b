"""Which checkpoint is whole, which is the last, which is the best, and which stay.

verl writes `global_step_N/` piece by piece and then a tracker file, in place: a process killed in between leaves a half
checkpoint or an empty tracker. Here a checkpoint counts only once its COMPLETE file exists, which is written last and
atomically; `repair` makes verl's tracker agree with that before a trainer starts. verl's own rotation knows neither
COMPLETE nor the best, and forgets at every start what it saved before: it is off, `rotate` does it.

Layout under a stage's `checkpoints/`: `global_step_N/[actor/]{model/huggingface,optimizer,extra}`, COMPLETE;
`best.json` next to them. Imported on login nodes: no torch here.
"""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from retool_mcore.files import sync_tree, write_atomically
from retool_mcore.state.progress import metric, read_steps

MARK = "COMPLETE"
THINNED = "THINNED"  # in a whole checkpoint whose optimizer was removed: no training goes on from it
BEST = "best.json"
LORA = "adapter/lora.json"  # in the policy's folder of a checkpoint with adapters (backends/megatron/adapters.py)
TRACKER = "latest_checkpointed_iteration.txt"  # verl/utils/checkpoint/checkpoint_manager.py:255
_linking = threading.Lock()
_FOLDER = re.compile(r"global_step_(\d+)")


def mark_complete(checkpoint: Path) -> None:
    """Declare `checkpoint` whole. Call it once, after the last of its files is written, on every rank.

    The stage's link `policy` moves with it, so it names the newest whole checkpoint however the stage ends.
    """
    sync_tree(checkpoint)
    write_atomically(checkpoint / MARK, "")
    sync_tree(checkpoint, folders_only=True)
    link_policy(checkpoint.parents[1])


def declare_whole(checkpoint: Path, started: float, written: float | None = None) -> dict[str, float]:
    """mark_complete, and say so. `started`: time.monotonic() when the step began to wait for it; `written`: when it
    went on, None: it waits until now. Returns checkpoint/pause_s (what it waited), /bytes and /complete_s."""
    mark_complete(checkpoint)
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    seconds = time.monotonic() - started
    pause = seconds if written is None else written - started
    report = f"{size / 1e9:.3g} GB, the step waited {pause:.1f} s, COMPLETE after {seconds:.1f} s"
    print(f"{checkpoint.name} is whole: {report}", flush=True)
    return {"checkpoint/pause_s": pause, "checkpoint/bytes": float(size), "checkpoint/complete_s": seconds}


def folder_of(root: Path | str, step: int) -> Path:
    """Return the folder of a step's checkpoint as verl writes it, under a stage's folder of checkpoints."""
    return Path(root) / f"global_step_{step}"


def step_of(checkpoint: Path) -> int:
    return int(_FOLDER.fullmatch(checkpoint.name).group(1))


def complete(root: Path) -> list[Path]:
    """Whole checkpoints under `root`, oldest first. One whose weights were removed does not count."""
    return sorted((path for path in _folders(root) if _is_whole(path)), key=step_of)


def latest(root: Path) -> Path | None:
    return (complete(root) or [None])[-1]


def unfinished(root: Path) -> Path | None:
    """The checkpoint that is being written, or that a killed trainer left behind; None when every one is whole."""
    return max(unfinished_ones(root), key=step_of, default=None)


def unfinished_ones(root: Path) -> list[Path]:
    """All checkpoints that are not whole. `repair` removes them."""
    return [path for path in _folders(root) if not _is_whole(path)]


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # renamed or removed meanwhile
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def repair(root: Path) -> Path | None:
    """Point verl's tracker at the last whole checkpoint, remove every other that is not whole, return the last.

    To be called before a trainer starts, while nothing writes.
    """
    last = latest(root)
    for path in unfinished_ones(root):
        shutil.rmtree(path)
    if last is not None:
        write_atomically(root / TRACKER, str(step_of(last)))
        link_policy(root.parent)  # a kill between a checkpoint's mark and its link left the link behind
    else:
        (root / TRACKER).unlink(missing_ok=True)
    return last


def best(root: Path) -> dict | None:
    """Return the content of best.json, {"metric", "value", "step", perhaps "se"}, while that checkpoint is whole; else
    None."""
    content = json.loads((root / BEST).read_text()) if (root / BEST).is_file() else None
    return content if content and _is_whole(folder_of(root, content["step"])) else None


def rotation(train: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `rotate` in a configuration's section `train`."""
    settings = {"keep_last": train["keep_checkpoints"], "keep_best": train["keep_best"], "best_is": train["best_is"]}
    return settings | ({"thin_sft": True} if train.get("thin_sft") else {})


def rotate(
    stage_dir: Path,
    keep_last: int,
    keep_best: str | None = None,
    best_is: str = "highest",
    thin_sft: bool = False,
) -> None:
    """Find the best checkpoint, then remove all but it and the last ones. Checkpoints in the making are not touched.

    The best is taken from the stage's own metrics files at the very steps of the checkpoints, the recorded best
    included. A checkpoint whose metric is not measured yet can only be the newest, which stays, and counts next time;
    one that has no such value, or NaN, is never the best. verl validates step N with the very weights of checkpoint N.
    The highest value is the best, though others may be within its standard error: of equals any will do, and of equal
    values it is the later step.

    Args:
        keep_last: how many of the newest stay, 1 or more.
        keep_best: name of a metric, as `progress.metric` finds it; None: no best.
        best_is: "highest" or "lowest".
        thin_sft: also `thin_out` the run's SFT, once this stage has a whole checkpoint.
    """
    root = stage_dir / "checkpoints"
    whole = complete(root)
    if thin_sft and whole:
        thin_out(stage_dir.parent / "sft")
    link_policy(stage_dir)  # before the checkpoint that it may still name goes
    stay = set(whole[-keep_last:])
    if keep_best is not None and (chosen := _find_best(stage_dir, whole, keep_best, best_is)) is not None:
        if chosen != best(root):
            write_atomically(root / BEST, json.dumps(chosen))
        checkpoint = folder_of(root, chosen["step"])
        _link(stage_dir / "policy_best", policy_folder(checkpoint))
        stay.add(checkpoint)
    for path in whole:
        if path not in stay:
            (path / MARK).unlink()  # first: killed in the middle, it is none that counts
            shutil.rmtree(path)


def thin_out(stage_dir: Path) -> None:
    """Remove from the checkpoints of a stage that has come to its end what only a resumed training reads.

    The policy's Hugging Face folder of each stays, so evaluations, exports and later stages find what they did.
    """
    if not (stage_dir / MARK).is_file():
        return
    for checkpoint in complete(stage_dir / "checkpoints"):
        if superfluous := _superfluous(checkpoint):
            write_atomically(checkpoint / THINNED, "")  # first: killed in the middle, it is none to go on from
            for path in superfluous:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def superfluous_bytes(stage_dir: Path) -> int:
    """Bytes that `thin_out` would free."""
    if not (stage_dir / MARK).is_file():
        return 0
    paths = [path for whole in complete(stage_dir / "checkpoints") for path in _superfluous(whole)]
    return sum(folder_bytes(path) if path.is_dir() else path.stat().st_size for path in paths)


def is_thinned(checkpoint: Path) -> bool:
    return (checkpoint / THINNED).is_file()


def _superfluous(checkpoint: Path) -> list[Path]:
    """The files and folders of a whole checkpoint that are neither its policy's nor its marks."""
    policy = policy_folder(checkpoint)
    paths, level = [], checkpoint
    while level != policy:
        below = level / policy.relative_to(level).parts[0]
        paths += [path for path in level.iterdir() if path != below and path.name not in (MARK, THINNED)]
        level = below
    return paths


def policy_folder(checkpoint: Path) -> Path:
    """The Hugging Face folder (weights, config, tokenizer) inside a checkpoint of SFT or RL."""
    inner = checkpoint / "actor" if (checkpoint / "actor").is_dir() else checkpoint
    return inner / "model" / "huggingface"


def lora(checkpoint: Path) -> dict | None:
    """model.lora of the run that saved a checkpoint; None: it trained all weights."""
    file = policy_folder(checkpoint) / LORA
    return json.loads(file.read_text())["lora"] if file.is_file() else None


def link_policy(stage_dir: Path) -> Path | None:
    """Make `stage_dir`/policy name the last whole checkpoint's Hugging Face folder, for the stages that follow.

    None, and no link, when there is no whole checkpoint: RL with train.save_every=-1 saves none.
    """
    with _linking:  # RL declares a checkpoint whole in a thread while its main thread rotates
        last = latest(stage_dir / "checkpoints")
        return None if last is None else _link(stage_dir / "policy", policy_folder(last))


def half_trained(policy: Path) -> tuple[str, int] | None:
    """(stage, step) of a stage's link `policy` or `policy_best` whose stage has not come to its end; None elsewhere.

    The link moves with every checkpoint, so that it exists says nothing about the end: the stage's COMPLETE does.
    """
    if not policy.is_symlink() or policy.name not in ("policy", "policy_best") or (policy.parent / MARK).is_file():
        return None
    step = policy_step(policy)
    return (policy.parent.name, step) if step else None


def policy_step(path: Path) -> int:
    """The training step of a policy in a checkpoint folder, 0 elsewhere."""
    return next((step_of(folder) for folder in path.resolve().parents if _FOLDER.fullmatch(folder.name)), 0)


def _folders(root: Path) -> list[Path]:
    return [path for path in root.glob("global_step_*") if _FOLDER.fullmatch(path.name)]


def _is_whole(checkpoint: Path) -> bool:
    return (checkpoint / MARK).is_file() and policy_folder(checkpoint).is_dir()


def _find_best(stage_dir: Path, whole: list[Path], name: str, best_is: str) -> dict | None:
    sign = {"highest": 1, "lowest": -1}[best_is]
    recorded = best(stage_dir / "checkpoints")
    candidates = {recorded["step"]: recorded} if recorded and recorded["metric"] == name else {}
    steps = read_steps(stage_dir)
    for step in map(step_of, whole):
        value = metric(steps.get(step, {}), name)
        if value is not None and value == value:  # a NaN would win or lose every comparison
            error = metric(steps[step], f"{name}_se")
            candidates[step] = {"metric": name, "value": value, "step": step} | ({} if error is None else {"se": error})
    return max(candidates.values(), key=lambda entry: (sign * entry["value"], entry["step"]), default=None)


def _link(link: Path, target: Path) -> Path:
    named = os.path.relpath(target, link.parent)
    if not link.is_symlink() or os.readlink(link) != named:
        part = link.with_name(f"{link.name}.part")
        part.unlink(missing_ok=True)
        part.symlink_to(named)
        os.replace(part, link)
    return link
