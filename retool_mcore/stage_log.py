"""Finds in the log of a failed stage the line that says why it failed."""

import re
from pathlib import Path

_TAIL_BYTES = 4_000_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Ray's and vLLM's "(TaskRunner pid=12, ip=...) ", torchrun's "[rank0]: ", vLLM's "ERROR 11-21 19:05:00 [core.py:7] ".
_PREFIX = re.compile(r"^(?:\([^()]*pid=\d+[^()]*\)\s*|\[(?:rank|default)?\d+\]:\s*|ERROR [\d: -]+\[[^\]]*\]\s*)+")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Iteration)|UserError)"
    r"(?:\([\w.]+\))?(?::\s?(?P<message>.*))?$"
)
_FATAL = re.compile(r"^Fatal Python error: ")
# Reported by those who only noticed that somebody else had failed.
_SECONDARY = re.compile(
    r"ChildFailedError|SystemExit|KeyboardInterrupt|ActorDiedError|ActorUnavailableError|WorkerCrashedError"
    r"|DistBackendError|RayTaskError|Connection closed by peer|Connection reset by peer|Broken pipe|EOFError"
    r"|SignalException|EngineDeadError"
)


def last_error(log: Path, start: int = 0) -> tuple[str, bool]:
    """(the last meaningful error line after byte `start`, whether it is a UserError's message).

    Errors that follow from another process's failure count only when there is no other; without any exception it is the
    last line with text, and "" for an empty log.
    """
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
        text = _ANSI.sub("", file.read().decode(errors="replace"))
    lines = [_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]
    secondary = last = ""
    for line in reversed(lines):
        if line.startswith("retool: "):
            return line.removeprefix("retool: "), True
        match = _EXCEPTION.match(line)
        if match and match["name"] == "UserError":
            return match["message"] or "", True
        if (match or _FATAL.match(line)) and not _SECONDARY.search(line):
            return line, False
        if match and not secondary:
            secondary = line
        if line.strip() and not last:
            last = line.strip()
    return secondary or last, False
