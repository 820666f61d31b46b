"""The folder of temporary files, under a name that is short enough for sockets.

The path of a Unix socket has 107 bytes at most (sys/un.h). Ray, vLLM, torch, Python's multiprocessing and our own
template put theirs below TMPDIR, which batch systems make long. A long folder therefore gets a short name: a link in a
folder of the user's own. The files stay on the disk that TMPDIR names.
"""

import hashlib
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.files import own_folder

MOST_BYTES = 107  # of a socket's path
ROOM = 48  # bytes that a library adds to TMPDIR: vLLM 37 (a uuid), torch and Python's multiprocessing up to 35
RAY_ROOM = 75  # /ray/session_YYYY-MM-DD_HH-MM-SS_123456_4194304/sockets/plasma_store.1
GIVEN = "RETOOL_TMPDIR"  # the folder that the short TMPDIR stands for: on another node the link must be made again
PLACES = ("/tmp",)
_PLAIN = re.compile(r"/[\w./+-]*", re.ASCII)  # Ray joins the words of a command line without quotes


def folder() -> Path:
    """The folder for temporary files. Raises UserError where TMPDIR names one that Python would pass over in silence,
    or that takes no sockets."""
    asked = os.environ.get("TMPDIR")
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError("no folder takes temporary files: set TMPDIR to one that is writable and not full.") from error
    if asked and os.path.abspath(asked) != found:
        raise UserError(
            f"TMPDIR={asked} is not there or not writable, or full, and {found} would be taken: name a folder that "
            "takes files, or unset TMPDIR."
        )
    _check_sockets(Path(found))
    return Path(found)


def _check_sockets(path: Path) -> None:
    place = short(path) / f"retool-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(place))
    except OSError as error:
        raise UserError(
            f"{path}, the folder for temporary files, takes no sockets ({error.strerror or error}): set TMPDIR to a "
            "folder on a local disk."
        ) from error
    finally:
        place.unlink(missing_ok=True)


def variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """TMPDIR under a name that is short and plain, and the folder that it stands for; {} where it is so already.

    Raises UserError when it needs a link and no folder of this user's own can be had for it.
    """
    given, kept = env.get("TMPDIR"), env.get(GIVEN)
    if not given:
        return {}
    if kept and Path(given).name == _name(Path(kept)):
        given = kept
    path = Path(os.path.abspath(given))
    if not path.is_dir():
        return {}
    named = short(path)
    return {} if str(named) == env["TMPDIR"] else {"TMPDIR": str(named), GIVEN: str(path)}


def short(path: Path, room: int = ROOM) -> Path:
    """`path` (absolute), or a link to it, so that a socket whose name takes `room` more bytes can lie below it."""
    if len(os.fsencode(path)) + room <= MOST_BYTES and _PLAIN.fullmatch(str(path)):
        return path
    link = own() / _name(path)
    if not _leads_to(link, path):
        for other in link.parent.iterdir():  # of folders that are gone
            if other.is_symlink() and not other.exists():
                other.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # of another folder whose name begins alike
            link.unlink()
        try:
            link.symlink_to(path)
        except FileExistsError:  # another process was faster
            if not _leads_to(link, path):
                raise
    return link


def own() -> Path:
    """A folder with a short path that nobody else can enter, in /tmp or where the system keeps this user's sockets.

    Raises UserError where neither can be had.
    """
    first = None
    # /tmp first: XDG_RUNTIME_DIR is removed at the end of the login session, which a run may outlive.
    for parent in (*PLACES, os.environ.get("XDG_RUNTIME_DIR")):
        if not parent or not os.path.isdir(parent):
            continue
        path = Path(parent, f"retool-{os.geteuid()}")
        try:
            own_folder(path)
            return path
        except (OSError, UserError) as error:
            first = first or error
    raise UserError(f"no short folder for the sockets of a long TMPDIR: {first or 'there is no /tmp'}")


def _name(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:8]


def _leads_to(link: Path, path: Path) -> bool:
    try:
        return os.readlink(link) == str(path)
    except OSError:
        return False
