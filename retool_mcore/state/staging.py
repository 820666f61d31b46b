"""Where a checkpoint lies on its way to the disk: a folder in this node's memory, which goes when nobody holds it.

Such a folder outlives the processes that filled it, and holds memory until it is removed. Its ranks therefore hold a
lock on it, which the kernel takes from the dead, and whoever comes by removes the folders without one.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/dev/shm")
TAKEN = ".taken"


def hold(name: str) -> tuple[Path, int]:
    """The folder for `name`, made empty by the first that asks, and the lock: it stays until all locks are closed."""
    with _alone():
        _remove_unheld()
        folder = ROOT / f"{_prefix()}{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return folder, lock


def sweep() -> None:
    """Remove this user's folders that no living process holds."""
    if ROOT.is_dir():
        with _alone():
            _remove_unheld()


def move(source: Path, target: Path) -> int:
    """Copy the files of `source` to `target`, synced, and remove them; returns their bytes.

    Several processes may do it at once: who renames a file first has it.
    """
    size = 0
    for path in sorted(source.rglob("*")):
        taken = path.with_name(path.name + TAKEN)
        if not path.is_file() or path.suffix == TAKEN:
            continue
        try:
            path.rename(taken)
        except FileNotFoundError:  # another has it
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open(taken, "rb") as file, open(copy, "wb") as out:
            shutil.copyfileobj(file, out, 2**24)
            out.flush()
            os.fsync(out.fileno())
        size += taken.stat().st_size
        taken.unlink()
    return size


def _prefix() -> str:
    return f"retool-checkpoint-{os.getuid()}-"


@contextmanager
def _alone() -> Iterator[None]:
    guard = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def _remove_unheld() -> None:
    for folder in ROOT.glob(f"{_prefix()}*"):
        lock = os.open(folder, os.O_RDONLY)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        os.close(lock)
