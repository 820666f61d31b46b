"""Removing what a program made in its folder, however deep, wide or closed it is."""

import contextlib
import os


def remove_tree(folder: str) -> None:
    """Remove `folder` and all in it; never raises for what it holds, what cannot be removed stays.

    Not shutil.rmtree, which calls itself for every level of the tree and holds a descriptor open for each: a tree that
    is deep enough ends the process. Here a folder's subfolders move up to the top before it goes. Nothing else may
    change the tree meanwhile.
    """
    try:
        top = _open(folder, None)
    except OSError:
        return
    try:
        while any([_flatten(top, name) for name in os.listdir(top)]):
            pass
    except OSError:
        pass
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _flatten(top: int, name: str) -> bool:
    """Remove the entry `name` of `top`, moving subfolders that it has into `top`; whether it is gone."""
    try:
        if _unlinked(name, top):
            return True
        folder = _open(name, top)
        try:
            for entry in os.listdir(folder):
                if not _unlinked(entry, folder):
                    os.close(_open(entry, folder))
                    os.rename(entry, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _unlinked(name: str, folder: int) -> bool:
    """Remove the entry if it is no folder. Raises OSError when it cannot be removed."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):
        os.close(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder))
        return False
    return True


def _open(name: str, folder: int | None) -> int:
    """The folder, made ours to list and change again, which a program may have forbidden. Raises OSError for a link."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        # By the descriptor: where the name leads may change, and chmod follows links.
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(f"/proc/self/fd/{fd}/.", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(fd)
