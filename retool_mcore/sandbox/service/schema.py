"""SandboxFusion's /run_code, request and reply, and the fields that are ours.

Its own fields (bytedance/SandboxFusion, sandbox/server/sandbox_api.py): code, language, compile_timeout, run_timeout
(s), memory_limit_MB (-1: the service's), stdin, files {path: base64 or null}, fetch_files [path]. Reply: {status:
"Success" | "Failed" | "SandboxError", message, compile_result, run_result: {status: "Finished" | "Error" |
"TimeLimitExceeded", execution_time (s), return_code, stdout, stderr}, executor_pod_name, files {path: base64}}.

Ours, which SandboxFusion ignores: request_id (a repeated one joins the first), session and session_resume (true: refuse
with 409 where the session is unknown), trajectory (key of fairness), display (true: the reply has `value`, the repr of
a final bare expression, and `ending`, our Status).
"""

import base64
import binascii
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from retool_mcore.sandbox.base import Result, Status

LANGUAGES = ("python",)
DEFAULT_TIMEOUT_S = 10.0  # SandboxFusion's
LOAD_HEADER = "X-Sandbox-Load"  # of every reply: "running queued slots", so that a client knows it without asking
MAX_FILES = 1000  # that a request may bring, and as many that it may fetch
MAX_NAME = 128  # characters of a session's, request's or trajectory's name
MIN_SESSION = 16  # a session's name is all that keeps its variables from other callers
MAX_PATH = 1024
_REQUIRED = object()
# field: (its default, the types it may have, those types in words)
_NUMBER = ((int, float), "a number")
_TEXT = ((str,), "a text")
_OPTIONAL_TEXT = ((str, type(None)), "a text or null")
_FLAG = ((bool,), "true or false")
_FIELDS = {
    "code": (_REQUIRED, *_TEXT),
    "language": (_REQUIRED, *_TEXT),
    "compile_timeout": (DEFAULT_TIMEOUT_S, *_NUMBER),
    "run_timeout": (DEFAULT_TIMEOUT_S, *_NUMBER),
    "memory_limit_MB": (-1, *_NUMBER),
    "stdin": (None, *_OPTIONAL_TEXT),
    "files": ({}, (dict,), "an object {path: base64}"),
    "fetch_files": ([], (list,), "a list of paths"),
    "request_id": (None, *_OPTIONAL_TEXT),
    "session": (None, *_OPTIONAL_TEXT),
    "session_resume": (False, *_FLAG),
    "trajectory": (None, *_OPTIONAL_TEXT),
    "display": (False, *_FLAG),
}


class BadRequest(Exception):
    """The message is one sentence for whoever sent it."""


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for."""

    timeout_s: float
    memory_mb: int


@dataclass(frozen=True)
class RunRequest:
    """`memory_mb` None: the service's own; `files` decoded."""

    code: str
    language: str
    timeout_s: float
    memory_mb: int | None
    stdin: str
    files: Mapping[str, bytes]
    fetch_files: tuple[str, ...]
    request_id: str | None
    session: str | None
    session_resume: bool
    trajectory: str | None
    display: bool

    def options(self) -> dict:
        """For Sandbox.run; what the request leaves out is left to the sandbox."""
        options = {"timeout_s": self.timeout_s}
        if self.memory_mb is not None:
            options["memory_mb"] = self.memory_mb
        for name in ("stdin", "files", "fetch_files", "session"):
            if value := getattr(self, name):
                options[name] = value
        return options


def read_request(body: bytes, limits: Limits) -> RunRequest:
    """Raises BadRequest for anything but a request that can be run, an unknown language excepted."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest("the body must be a JSON object with at least code and language")
    values = {name: _field(given, name) for name in _FIELDS}
    timeout_s, memory = values["run_timeout"], values["memory_limit_MB"]
    if not 0 < timeout_s <= limits.timeout_s:
        raise BadRequest(
            f"run_timeout is {timeout_s:g} s; this service runs programs for at most {limits.timeout_s:g} s"
        )
    if not (memory == -1 or 0 < memory <= limits.memory_mb):
        raise BadRequest(f"memory_limit_MB is {memory:g}; this service gives at most {limits.memory_mb} MB (-1: all)")
    for name in ("files", "fetch_files"):
        if len(values[name]) > MAX_FILES:
            raise BadRequest(f"{name} has {len(values[name])} entries; this service takes {MAX_FILES}")
        if not all(isinstance(path, str) and len(path) <= MAX_PATH for path in values[name]):
            raise BadRequest(f"{name} must be a list of paths, of at most {MAX_PATH} characters each")
    for name in ("request_id", "session", "trajectory"):
        if len(values[name] or "") > MAX_NAME:
            raise BadRequest(f"{name} has more than {MAX_NAME} characters")
    if values["session"] is not None and len(values["session"]) < MIN_SESSION:
        raise BadRequest(f"session must be a name that nobody guesses, of {MIN_SESSION} characters or more")
    return RunRequest(
        code=values["code"],
        language=values["language"],
        timeout_s=float(timeout_s),
        memory_mb=None if memory in (-1, limits.memory_mb) else int(memory),
        stdin=values["stdin"] or "",
        files={path: _decoded(path, text) for path, text in values["files"].items() if text is not None},
        fetch_files=tuple(values["fetch_files"]),
        **{name: values[name] for name in ("request_id", "session", "session_resume", "trajectory", "display")},
    )


def _field(given: dict, name: str):
    default, types, words = _FIELDS[name]
    value = given.get(name, default)
    if value is _REQUIRED:
        raise BadRequest(f"{name} is missing; it must be {words}")
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise BadRequest(f"{name} must be {words}, not {json.dumps(value)[:80]}")
    return value


def _decoded(path: str, text) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadRequest(f"files[{path!r}] is not base64: {error}") from None


def reply_of(result: Result, display: bool) -> dict:
    """A Result in SandboxFusion's terms: what a program does to itself is Failed, never SandboxError."""
    if result.status is Status.SANDBOX:
        reply = error_reply(result.stderr.strip() or "the sandbox failed")
    else:
        timed_out = result.status is Status.TIMEOUT
        code = None if timed_out else return_code(result)
        reply = {
            "status": "Success" if code == 0 else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": {
                "status": "TimeLimitExceeded" if timed_out else "Finished",
                "execution_time": result.duration_s,
                "return_code": code,
                "stdout": result.stdout,
                "stderr": result.stderr,
            },
            "executor_pod_name": _pod_name(),
            "files": {path: base64.b64encode(data).decode() for path, data in result.files.items()},
        }
    return reply | {"value": result.value, "ending": result.status} if display else reply


def error_reply(message: str) -> dict:
    """Trouble of the service, or something that it does not do."""
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": _pod_name(),
        "files": {},
    }


def return_code(result: Result) -> int:
    """The program's exit code, or the one that fits its status: a kill is -9, any other failure 1."""
    if result.exit_code is not None and (result.exit_code or result.status in (Status.SUCCESS, Status.OUTPUT)):
        return result.exit_code
    return {Status.SUCCESS: 0, Status.OUTPUT: 0, Status.KILLED: -9}.get(result.status, 1)


def read_reply(reply: dict) -> Result:
    """The Result behind a reply to a request with `display`. Raises ValueError when it is none of ours."""
    try:
        status, ran = Status(reply["ending"]), reply.get("run_result")
        if status is Status.SANDBOX:
            return Result.broken(reply["message"])
        files = {path: base64.b64decode(text) for path, text in reply["files"].items()}
        return Result(
            status, ran["stdout"], ran["stderr"], reply["value"], ran["execution_time"], ran["return_code"], files
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the reply is not that of a retool sandbox service ({type(error).__name__}: {error})"
        ) from None


def _pod_name() -> str:
    return os.environ.get("MY_POD_NAME") or socket.gethostname()
