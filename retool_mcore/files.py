"""Files that appear whole or not at all, for every writer of this package."""

import json
import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from retool_mcore.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path next to `path` to write to; when the body ends well, that file takes its place, synced to the disk.

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


def own_folder(path: Path, mode: int = 0o700) -> None:
    """Make `path`, or take it over: a folder of this user's that nobody else can enter. Raises UserError for any other.

    For folders below /tmp, whose names others can guess and whose place they can take first.

    Args:
        mode: what others may do at most; 0o711 lets them through to a folder that is theirs, and list nothing.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o777 & ~mode:
        raise UserError(f"{path} is a link, or belongs to or is open to another user: remove it, or let its owner.")
    if mode != 0o700:
        path.chmod(mode)


def at_home(value: Any) -> Any:
    """`value` with the user's home folder for `~`, in lists and sections too: a shell leaves it alone behind `key=`."""
    if isinstance(value, Mapping):
        return {name: at_home(child) for name, child in value.items()}
    if isinstance(value, list):
        return [at_home(child) for child in value]
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value


def allow_open_files(wanted: int = 65_536) -> None:
    """This process, and what it starts, may have as many files and sockets open at once, where the hard limit lets it:
    the soft one of many hosts is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def private_files() -> None:
    """New files and folders of this process, and of what it starts, are its user's alone; RETOOL_UMASK (octal, 077)
    shares them, as 027 does with the group. Raises UserError for another value."""
    mask = os.environ.get("RETOOL_UMASK", "077")
    if not re.fullmatch("0?[0-7]{3}", mask):
        raise UserError(
            f"RETOOL_UMASK is {mask!r}: expected a mask in octal, such as 077 (only you) or 027 (your group)."
        )
    os.umask(int(mask, 8))


def sync_tree(folder: Path, folders_only: bool = False) -> None:
    """Bring `folder` to the disk: its files, and the lists of its and its folders' files, the deepest first."""
    paths = [path for path in folder.rglob("*") if path.is_dir() or (path.is_file() and not folders_only)]
    for path in [*reversed(paths), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Write `text` (UTF-8) to `path` by `replacing`; `mode`, if given, are its permissions from the first moment."""
    with replacing(path) as part:
        if mode is not None:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        part.write_text(text, encoding="utf-8")


def tail(path: Path, most: int, start: int = 0) -> bytes:
    """The last `most` bytes of a file, and none before byte `start`."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - most))
        return file.read()


def read_json_lines(path: Path) -> list[dict]:
    """The objects of a file of one JSON object a line; [] where there is no file.

    A line that is half written (others may be writing, or were killed), or holds no object, does not count.
    """
    records = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def shown(url: str) -> str:
    """`url` without the name and the token that it may hold, for messages and logs."""
    if url.startswith("/"):  # a file
        return url
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + mark + rest.rpartition("@")[2]


def without_secrets(text: str, url: str) -> str:
    """`text`, such as another library's error, without what `shown` leaves out of `url`, and of any address in it."""
    user = url.rpartition("@")[0].rpartition("://")[2]
    password = user.partition(":")[2]
    text = re.sub(r"(?<=://)\S*@", "", text)
    for secret in filter(None, (password, unquote(password))):
        text = text.replace(secret, "***")
    return text
