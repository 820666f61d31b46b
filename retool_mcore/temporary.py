"""The folder of temporary files, under a name that is short enough for sockets.

The path of a Unix socket has 107 bytes at most (sys/un.h). Ray, vLLM, torch, Python's multiprocessing and our own
template put theirs below TMPDIR, which batch systems make long. A long folder therefore gets a short name: a link in a
folder of the user's own. The files stay on the disk that TMPDIR names.

A Slurm job has a folder of its own below TMPDIR on each of its nodes. Jobs that share a node do not meet there, and
what a job's engines leave goes with the folder.
"""

import hashlib
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.files import own_folder

MOST_BYTES = 107  # of a socket's path
ROOM = 48  # bytes that a library adds to TMPDIR: vLLM 37 (a uuid), torch and Python's multiprocessing up to 35
RAY_ROOM = 75  # /ray/session_YYYY-MM-DD_HH-MM-SS_123456_4194304/sockets/plasma_store.1
GIVEN = "RETOOL_TMPDIR"  # the folder that the short TMPDIR stands for: on another node the link must be made again
JOB = "RETOOL_JOB_FOLDER"  # the name of a job's own folder below TMPDIR, the same on all of its nodes
PLACES = ("/tmp",)
_PLAIN = re.compile(r"/[\w./+-]*", re.ASCII)  # Ray joins the words of a command line without quotes


def folder() -> Path:
    """The folder for temporary files. Raises UserError where TMPDIR names one that Python would pass over in silence,
    or that takes no sockets."""
    asked = os.environ.get("TMPDIR")
    try:
        directory = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError("no folder takes temporary files: set TMPDIR to one that is writable and not full.") from error
    if asked and os.path.abspath(asked) != directory:
        raise UserError(
            f"TMPDIR={asked} is not there or not writable, or full, and {directory} would be taken: name a folder that "
            "takes files, or unset TMPDIR."
        )
    _check_sockets(Path(directory))
    return Path(directory)


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

    In a job (`job_folder`) TMPDIR becomes the job's own folder below the one given, which is made here.

    Raises UserError when it needs a link and no folder of this user's own can be had for it, or when another user has
    the job's folder.
    """
    if (path := _asked(env)) is None:
        return {}
    if JOB in env:
        try:
            own_folder(path, 0o711)  # sandboxed programs run as another user, in a folder below
        except OSError:  # `folder` says what is wrong with the one above
            return {}
    if not path.is_dir():
        return {}
    named = short(path)
    return {} if str(named) == env.get("TMPDIR") else {"TMPDIR": str(named), GIVEN: str(path)}


def _asked(env: Mapping[str, str]) -> Path | None:
    """The folder that TMPDIR names or, as a link of ours, stands for; a job's own below it. None: the system's."""
    requested, kept, job = env.get("TMPDIR"), env.get(GIVEN), env.get(JOB)
    if job:  # as Python's tempfile looks for it
        requested = next((env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), PLACES[0])
    if not requested:
        return None
    if kept and Path(requested).name == _name(Path(kept)):
        requested = kept
    path = Path(os.path.abspath(requested))
    return path / job if job and path.name != job else path


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with TMPDIR as it was before `variables` changed it, for a process on another node.

    The node makes the folder and its short name itself: Slurm there would make a folder in the place of a link that is
    missing, or take /tmp.
    """
    env = dict(env)
    path = env.pop(GIVEN, None)
    if path is not None:
        env["TMPDIR"] = str(Path(path).parent if Path(path).name == env.get(JOB) else path)
    return env


def job_folder(job: str, start: int) -> dict[str, str]:
    """The variable that gives a start of a job (its number from 0) a TMPDIR of its own; see `variables`."""
    return {JOB: f"retool-job-{job}-{start}"}


def remove_job_folder(env: Mapping[str, str] = os.environ) -> None:
    """Remove this job's folder from this node, and what earlier starts of it have left, as on a node that was lost.
    Nothing is done outside a job."""
    if JOB not in env or (place := _asked(env)) is None:
        return
    job, _, start = env[JOB].rpartition("-")
    for path in place.parent.glob(f"{job}-*"):
        number = path.name.removeprefix(f"{job}-")
        if number.isdecimal() and int(number) <= int(start):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError, UserError):
        _remove_dangling(own())


@contextmanager
def engine_sockets(here: bool) -> Iterator[dict[str, str]]:
    """The variable that names a folder for the sockets of vLLM's processes, which leave theirs when they are stopped.

    The folder is removed at the end. {} for processes that are not `here`, and in a job, whose own folder is removed.
    """
    if not here or JOB in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="retool-vllm-", dir=variables().get("TMPDIR")) as path:
        yield {"VLLM_RPC_BASE_PATH": str(short(Path(path)))}


def short(path: Path, room: int = ROOM) -> Path:
    """`path` (absolute), or a link to it, short enough for a socket below it whose name takes `room` more bytes."""
    if len(os.fsencode(path)) + room <= MOST_BYTES and _PLAIN.fullmatch(str(path)):
        return path
    link = own() / _name(path)
    if not _leads_to(link, path):
        _remove_dangling(link.parent)
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


def _remove_dangling(links: Path) -> None:
    """Remove the links to folders that are gone."""
    for link in links.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def _name(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:8]


def _leads_to(link: Path, path: Path) -> bool:
    try:
        return os.readlink(link) == str(path)
    except OSError:
        return False
