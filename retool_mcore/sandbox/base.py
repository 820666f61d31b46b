"""The interface of a sandbox: a program goes in, a `Result` comes out, and nothing the program does raises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

# The policy reads this many lines of an error. Tracebacks are already reduced to the program's own frames.
ERROR_LINES = 10


class Status(StrEnum):
    """How a run ended. Only SUCCESS and OUTPUT mean that the program ran to its end without an error."""

    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"
    SANDBOX = "sandbox_error"


LOST = "the session's state was lost; it begins anew with this run\n"  # the first line of such a run's stderr


@dataclass(frozen=True)
class Result:
    """The output of one run, and how it ended.

    `stdout` and `stderr` are clipped to the sandbox's `max_output_bytes`; `value` is the repr of a final bare
    expression (None when there was none or it was None); `duration_s` is wall time; `exit_code` as the shell gives it
    (None when it is not known); `files` the contents of those `fetch_files` that exist. Whenever `status` is neither
    SUCCESS nor OUTPUT the last line of `stderr` says why, in words, with the limit that was hit.
    """

    status: Status
    stdout: str
    stderr: str
    value: str | None
    duration_s: float
    exit_code: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def broken(cls, reason: str) -> "Result":
        """Return the result of a run that the sandbox itself lost, for this reason."""
        return cls(Status.SANDBOX, "", f"{reason}\n", None, 0.0)

    def observation(self, error_lines: int = ERROR_LINES) -> str:
        """Return what the policy reads: that its session's state was lost, stdout, the displayed value, why it failed;
        "" if all are empty.

        Only the last `error_lines` lines of an error are kept.
        """
        parts = [LOST if self.stderr.startswith(LOST) else "", self.stdout, self.value or ""]
        reason = self.stderr.rstrip().split("\n")
        if self.status is Status.ERROR:
            parts.append("\n".join(reason[-error_lines:]))
        elif self.status not in (Status.SUCCESS, Status.OUTPUT):
            parts.append(reason[-1])
        return "\n".join(part.rstrip("\n") for part in parts if part.strip())


class Sandbox(Protocol):
    """Runs programs. Safe to use from many tasks at once and from several event loops one after another."""

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        session: str | None = None,
    ) -> Result:
        """Run `code` and wait for its end; `timeout_s` and `memory_mb` replace the sandbox's own limits.

        `files` are put into the program's folder before, `fetch_files` read from it afterwards. Runs of one `session`
        share their variables.

        Never raises for what the program does; trouble of the sandbox itself is Status.SANDBOX. Raises UserError only
        when this machine cannot give what the configuration asks for.
        """
        ...

    async def close(self) -> None:
        """Release what the sandbox holds. A later `run` starts it again."""
        ...
