"""Files that appear whole or not at all, for every writer of this package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to; when the body ends well, that file takes its place, synced to the disk.

    A reader, or a crash at any point, sees the old file or the new one, whole. A body that raises leaves the old one
    and nothing else; a crash may leave `.NAME.PID.part`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sync_tree(folder: Path, folders_only: bool = False) -> None:
    """Bring `folder` to the disk: its files, and the lists of its and its folders' files, the deepest first."""
    paths = [path for path in folder.rglob("*") if path.is_dir() or (path.is_file() and not folders_only)]
    for path in [*reversed(paths), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` by `replacing`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
