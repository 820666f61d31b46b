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
import json
import os
import socket
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from retool_mcore.errors import refused_value
from retool_mcore.sandbox.base import Result, Status

LANGUAGES = ("python",)
DEFAULT_TIMEOUT_S = 10.0  # SandboxFusion's
LOAD_HEADER = "X-Sandbox-Load"  # of every reply: "running queued slots", so that a client knows it without asking
MAX_FILES = 1000  # that a request may bring, and as many that it may fetch
MAX_NAME = 128  # characters of a session's, request's or trajectory's name
MIN_SESSION = 16  # a session's name is all that keeps its variables from other callers
MAX_PATH = 1024


class BadRequest(Exception):
    """The message is one sentence for whoever sent it."""


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for."""

    timeout_s: float
    memory_mb: int


def _decoded(text: Any) -> Any:
    return base64.b64decode(text, validate=True) if isinstance(text, str) else text


Text = Annotated[str, InstanceOf()]  # half of a surrogate pair is the program's own trouble
Name = Annotated[str, Field(max_length=MAX_NAME)]
Path = Annotated[str, Field(max_length=MAX_PATH)]
File = Annotated[bytes, BeforeValidator(_decoded)]


class RunRequest(BaseModel):
    """The content of a request, `files` decoded; its other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    code: Text
    language: Text
    compile_timeout: float = DEFAULT_TIMEOUT_S
    run_timeout: Annotated[float, Field(gt=0)] = DEFAULT_TIMEOUT_S
    memory_limit_MB: float = -1  # noqa: N815, SandboxFusion's name
    stdin: Text | None = None
    files: Annotated[dict[Path, File | None], Field(max_length=MAX_FILES)] = {}
    fetch_files: Annotated[list[Path], Field(max_length=MAX_FILES)] = []
    request_id: Name | None = None
    session: Annotated[str, Field(min_length=MIN_SESSION, max_length=MAX_NAME)] | None = None
    session_resume: bool = False
    trajectory: Name | None = None
    display: bool = False

    def options(self) -> dict:
        """Return the arguments of Sandbox.run; what the request leaves out is left to the sandbox."""
        options: dict[str, Any] = {"timeout_s": self.run_timeout}
        if self.memory_limit_MB != -1:
            options["memory_mb"] = int(self.memory_limit_MB)
        files = {path: data for path, data in self.files.items() if data is not None}
        optional = {
            "stdin": self.stdin,
            "files": files,
            "fetch_files": tuple(self.fetch_files),
            "session": self.session,
        }
        return options | {name: value for name, value in optional.items() if value}


def read_request(body: bytes, limits: Limits) -> RunRequest:
    """Raises BadRequest for anything but a request that can be run, an unknown language excepted."""
    try:
        request = RunRequest.model_validate(json.loads(body))
    except ValidationError as error:
        raise BadRequest(refused_value(error)) from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if request.run_timeout > limits.timeout_s:
        most = f"this service runs programs for at most {limits.timeout_s:g} s"
        raise BadRequest(f"run_timeout is {request.run_timeout:g} s; {most}")
    memory = request.memory_limit_MB
    if not (memory == -1 or 0 < memory <= limits.memory_mb):
        raise BadRequest(f"memory_limit_MB is {memory:g}; this service gives at most {limits.memory_mb} MB (-1: all)")
    return request.model_copy(update={"memory_limit_MB": -1}) if memory == limits.memory_mb else request


def reply_of(result: Result, display: bool) -> dict:
    """A Result in SandboxFusion's terms: what a program does to itself is Failed, never SandboxError."""
    if result.status is Status.SANDBOX:
        reply = error_reply(result.stderr.strip() or "the sandbox failed")
    else:
        timed_out = result.status is Status.TIMEOUT
        code = None if timed_out else return_code(result)
        reply = error_reply("") | {
            "status": "Success" if code == 0 else "Failed",
            "run_result": {
                "status": "TimeLimitExceeded" if timed_out else "Finished",
                "execution_time": result.duration_s,
                "return_code": code,
                "stdout": result.stdout,
                "stderr": result.stderr,
            },
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
        "executor_pod_name": os.environ.get("MY_POD_NAME") or socket.gethostname(),
        "files": {},
    }


def return_code(result: Result) -> int:
    """The program's exit code, or the one that fits its status: a kill is -9, for output too, any other failure 1."""
    if result.exit_code is not None and (result.exit_code or result.status in (Status.SUCCESS, Status.OUTPUT)):
        return result.exit_code
    return {Status.SUCCESS: 0, Status.OUTPUT: -9, Status.KILLED: -9}.get(result.status, 1)


def read_reply(reply: dict) -> Result:
    """The Result behind a reply to a request with `display`. Raises ValueError when it is none of ours."""
    try:
        status, ran = Status(reply["ending"]), reply.get("run_result")
        if status is Status.SANDBOX:
            return Result.broken(reply["message"])
        files = {path: base64.b64decode(text) for path, text in reply["files"].items()}
        texts = ran["stdout"], ran["stderr"], reply["value"]
        return Result(status, *texts, ran["execution_time"], ran["return_code"], files)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the reply is not that of a retool sandbox service ({reason})") from None
