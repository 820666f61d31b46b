"""A `python` that is forked, not started: it hands its command line to a template (runner/template.py) and stands for
the child that the template forks: signals go on to the child, its exit status comes back.

Where no template answers, or one whose environment differs in what libraries read at import, it becomes the real
interpreter, so that every command works with it and without. Run by `python -IS`, which finds no package: the standard
library only.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys

SOCKET = "RETOOL_TEMPLATE"  # where the template listens
PYTHON = "RETOOL_FORKED_PYTHON"  # the executable that runs this file
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MOST_DESCRIPTORS = 64
RAY = "/site-packages/ray/"
RAY_SETUP, RAY_CONTEXT = RAY + "_private/workers/setup_worker.py", "--serialized-runtime-env-context="
RAY_WORKER = RAY + "_private/workers/default_worker.py"  # alone of Ray's own: its agents want its raylet for a parent


def worker_of(arguments: list[str]) -> list[str]:
    """A Ray worker's command line, with its variables set, where Ray would read it in a process that imports Ray first.

    Adapted place: `RuntimeEnvContext.exec_worker`. Unchanged where a runtime environment asks for more than variables.
    """
    if not (arguments and arguments[0].endswith(RAY_SETUP)):
        return arguments
    asked = dict(word.split("=", 1) for word in arguments[1:] if word.startswith((RAY_CONTEXT, "--language=")))
    context = json.loads(asked.get(RAY_CONTEXT[:-1], "{}"))
    more = {name for name, value in context.items() if value} - {"env_vars", "py_executable"}
    if more or asked.get("--language") != "PYTHON":
        return arguments
    for name, value in context.get("env_vars", {}).items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return [word for word in arguments[1:] if word.partition("=")[0] not in asked]


def program_of(arguments: list[str]) -> tuple[str, str, list[str]] | None:
    """("script", path, rest), ("-m", module, rest) or ("-c", code, rest); None: only a new interpreter can do that."""
    for place, argument in enumerate(arguments):
        if argument in ("-u", "-B", "-P") or argument.startswith(
            "-W"
        ):  # as PYTHON... variables, which the template has too
            continue
        if argument in ("-m", "-c"):
            rest = arguments[place + 1 :]
            return (argument, rest[0], rest[1:]) if rest else None
        own = argument.startswith("-") or (RAY in argument and not argument.endswith(RAY_WORKER))
        return None if own else ("script", argument, arguments[place + 1 :])
    return None


def open_descriptors() -> list[int]:
    """Return the descriptors that the child inherits in addition to the standard streams."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))  # the listing's own is closed by now
        except OSError:
            continue
        descriptors.append(int(name))
    return sorted(descriptors)[:MOST_DESCRIPTORS]


def ask(path: str, arguments: list[str]) -> tuple[socket.socket, int] | None:
    """The connection to the template and the child's number; None where there is none to be had."""
    descriptors = open_descriptors()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        request = {
            "arguments": arguments,
            "env": dict(os.environ),
            "folder": os.getcwd(),
            "descriptors": descriptors,
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        }
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        answer = connection.recv(4096)
    except OSError:
        return None
    pid = json.loads(answer).get("pid") if answer else None
    return None if pid is None else (connection, pid)


def main() -> None:
    path, arguments = os.environ.get(SOCKET), worker_of(sys.argv[1:])
    asked = ask(path, arguments) if path and program_of(arguments) else None
    if asked is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    connection, pid = asked

    def forward(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    answer = connection.recv(4096)
    status = json.loads(answer)["status"] if answer else -signal.SIGKILL  # the template is gone, and its children
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
