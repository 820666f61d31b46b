"""Finds in the log of a failed stage the line that says why it failed."""

import re
import signal
from pathlib import Path

from retool_mcore.files import tail

_TAIL_BYTES = 4_000_000
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Ray's and vLLM's "(TaskRunner pid=12, ip=...) ", torchrun's "[rank0]: ", vLLM's "ERROR 11-21 19:05:00 [core.py:7] ".
_PREFIX = re.compile(r"^(?:\([^()]*pid=\d++[^()]*\)\s*|\[(?:rank|default)?\d+\]:\s*|ERROR [\d: -]+\[[^\]]*\]\s*)+")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Iteration)|UserError)"
    r"(?:\([\w.]+\))?(?::\s?(?P<message>.*))?$"
)
_FATAL = re.compile(r"^Fatal Python error: ")
# Reported by those who only noticed that somebody else had failed.
_SECONDARY = re.compile(
    r"ChildFailedError|SystemExit|KeyboardInterrupt|ActorDiedError|ActorUnavailableError|WorkerCrashedError"
    r"|DistBackendError|RayTaskError|Connection closed by peer|Connection reset by peer|Broken pipe|EOFError"
    r"|SignalException|EngineDeadError|SocketError"
)
# torchrun's report of the rank that ended first on its node. SIGTERM is how torchrun ends the others.
_RANK = re.compile(
    r"^[ \t]*+host\s*: (?P<host>\S+)\s+rank\s*: (?P<rank>\d++).*\n\s*+exitcode\s*: -(?P<signum>\d+) ", re.MULTILINE
)
_BY_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGABRT)
_PROGRESS = re.compile(r"\d+%\|.*\||^step:\d+ - ")  # tqdm's bar, verl's line of a step
NODE_LINE = "retool-node: "  # what the supervisor of a node says (cluster/node.py)
_SRUN = re.compile(r"^srun: error: (?P<host>\S+): task.* (?P<how>Killed|Segmentation fault|Bus error)")
# Ray's, of a process that ended unasked.
_DEAD_WORKER = re.compile(
    r"A worker died or was killed while .*Worker IP address: (?P<ip>\S+) .*Worker PID: (?P<pid>\d+) "
    r"Worker exit type: SYSTEM_ERROR"
)
# vLLM's server's, of its engine's process.
_DEAD_ENGINE = re.compile(
    r"^\((?P<name>\w+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>\S+))?\) ERROR .*EngineDeadError: EngineCore encountered",
    re.MULTILINE,
)
# Actors of RL that are started again when they die, and asked again (rollout/rollouts.py, rollout/worker.py). Each says
# at its start that it is there, so that a log names it.
REPLACED = ("RolloutWorker", "JudgeActor")
OUT_OF_MEMORY = ", often for lack of memory"


def killed_by(signum: int) -> str:
    """ "killed by SIGKILL, often for lack of memory", to stand after the name of what was."""
    return f"killed by {signal.Signals(signum).name}" + (OUT_OF_MEMORY if signum == signal.SIGKILL else "")


def names_error(line: str) -> bool:
    """Whether the line is an exception's, and no other output."""
    return bool(_EXCEPTION.match(line) or _FATAL.match(line))


def last_error(log: Path, start: int = 0) -> tuple[str, bool]:
    """(the last meaningful error line after byte `start`, whether it is a UserError's message).

    A process that was killed is named before any exception: those of the others follow from it. Errors that follow from
    another process's failure count only when there is no other; without any exception it is the last line with text
    that is no progress, and "" for an empty log.
    """
    text = ANSI.sub("", tail(log, _TAIL_BYTES, start).decode(errors="replace"))
    raw = text.splitlines()
    lines = [_PREFIX.sub("", line.rstrip()) for line in raw]
    primary = secondary = last = ""
    for index, line in reversed(list(enumerate(lines))):
        match = _EXCEPTION.match(line)
        users = line.startswith("retool: ") or (match is not None and match["name"] == "UserError")
        if users:
            # What looks like the user's mistake may follow from a death: no trajectory comes from a dead engine.
            before = "\n".join(raw[:index])
            dead = _killed(before, lines[:index]) or dead_worker(before, fatal=True)
            message = line.removeprefix("retool: ") if match is None else match["message"] or ""
            return (dead, False) if dead else (message, True)
        if (match or _FATAL.match(line)) and not _SECONDARY.search(line):
            primary = line
            break
        if match and not secondary:
            secondary = line
        if line.strip() and not last and not _PROGRESS.search(line):
            last = line.strip()
    return _killed(text, lines) or primary or dead_worker(text) or _ended_by_slurm(lines) or secondary or last, False


def dead_worker(text: str, *, fatal: bool = False) -> str:
    """The first worker of Ray, or engine of vLLM, that was killed or crashed, by its log; "" when none was.

    fatal: pass over those of REPLACED, without which a stage goes on.
    """
    text = ANSI.sub("", text)
    engine = _DEAD_ENGINE.search(text)
    deaths = ((worker, _name_of(worker, text)) for worker in _DEAD_WORKER.finditer(text))
    worker, name = next((one for one in deaths if not (fatal and one[1] in REPLACED)), (None, ""))
    if engine and not (worker and worker.start() < engine.start()):
        where = f"on {engine['ip']}" if engine["ip"] else "on the first node"
        return f"vLLM's engine {where} (of {engine['name']}, pid {engine['pid']}) was killed or crashed"
    if worker is None:
        return ""
    return f"Ray's {name} on {worker['ip']} (pid {worker['pid']}) was killed or crashed"


def _name_of(worker: re.Match, text: str) -> str:
    """The class of the actor that the dead worker was, where it has written anything."""
    named = re.search(rf"\((\w+) pid={worker['pid']}(?:, ip={re.escape(worker['ip'])})?\)", text)
    return named[1] if named else "a worker"


def _killed(text: str, lines: list[str]) -> str:
    """Return which process was killed, as reported by torchrun or its node's supervisor; "" when nothing was."""
    for match in _RANK.finditer(text):
        if (signum := int(match["signum"])) not in _BY_OTHERS:
            return f"rank {match['rank']} on {match['host']} was {killed_by(signum)}"
    return next((line.removeprefix(NODE_LINE) for line in lines if line.startswith(NODE_LINE)), "")


def _ended_by_slurm(lines: list[str]) -> str:
    """Slurm's own word on a node's task; its supervisor was killed, or srun waited in vain for it."""
    ending = next((match for match in map(_SRUN.match, lines) if match), None)
    return f"the supervisor on {ending['host']} ended ({ending['how'].lower()})" if ending else ""
