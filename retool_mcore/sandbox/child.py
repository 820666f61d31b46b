"""The program's side of a run: confine this process for good, wait for the program's text, run it, report.

All that can be done before the text is known is done while nobody waits for it.
"""

import json
import os
import signal
from dataclasses import dataclass

from retool_mcore.sandbox import isolation
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.program import execute

MAX_PROCESSES = 64
MAX_FILES = 256
FILE_MB = 64
REPORT_FD, REQUEST_FD = 3, 4


@dataclass(frozen=True)
class Settings:
    """What all runs of a server share; `level` is what isolation.detect found, `folders` what programs may read."""

    level: str
    folders: list[str]
    base_dir: str
    memory_mb: int
    max_output_bytes: int


def be_program(settings: Settings, work_dir: str, request: int, outputs: list[int]) -> None:
    """Never returns. `request` is a pipe that brings JSON {code, stdin, timeout_s}; `outputs`: stdout, stderr, report.

    The report is JSON {status, value, traceback}, also when the sandbox itself fails here.
    """
    try:
        _confine(settings, work_dir, request, outputs)
        with open(REQUEST_FD, "rb") as pipe:
            text = pipe.read()
        if not text:
            os._exit(0)
        wanted = json.loads(text)
        _set_stdin(wanted["stdin"])
        isolation.set_limits(
            settings.memory_mb,
            cpu_s=2 * int(wanted["timeout_s"] + 1),
            file_mb=FILE_MB,
            max_files=MAX_FILES,
            max_processes=MAX_PROCESSES if settings.level == "namespaces" else None,
        )
    except OSError as error:
        _report({"status": Status.SANDBOX, "value": None, "traceback": f"\nthe sandbox failed: {error}\n"})
        os._exit(1)
    program = os.getpid()
    report = execute(wanted["code"], os.getcwd(), settings.max_output_bytes)
    if os.getpid() != program:
        # A fork made by the program that also ran to the end of the text; only the program itself reports.
        os.write(2, report["traceback"].encode("utf-8", "replace"))
        os._exit(report["status"] != Status.SUCCESS)
    _report(report)
    os._exit(0)


def _confine(settings: Settings, work_dir: str, request: int, outputs: list[int]) -> None:
    isolation.die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # The pipes' own numbers may be among those they shall get, so they are first moved out of the way.
    null = os.open(os.devnull, os.O_RDONLY)
    moved = [os.dup2(fd, 32 + index) for index, fd in enumerate((null, *outputs, request))]
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    os.closerange(REQUEST_FD + 1, 1024)
    os.setsid()
    if settings.level == "namespaces":
        isolation.enter_root(settings.base_dir, settings.folders, FILE_MB)
        program = os.fork()
        if program:
            _be_process_one(program)
        os.setsid()
    else:
        os.chdir(work_dir)
    isolation.drop_privileges()


def _set_stdin(text: str) -> None:
    # A file in memory: nobody has to feed it, and a program that does not read it blocks nobody.
    stdin = os.memfd_create("stdin")
    with open(stdin, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
        file.seek(0)
    os.dup2(stdin, 0)
    os.close(stdin)


def _report(report: dict) -> None:
    data = memoryview(json.dumps(report).encode())
    while data:
        data = data[os.write(REPORT_FD, data) :]


def _be_process_one(program: int) -> None:
    """Reap orphans until the program ends, then end too, which makes the kernel kill the rest of the namespace."""
    os.closerange(0, REQUEST_FD + 1)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            exit_code = os.waitstatus_to_exitcode(status)
            os._exit(exit_code if exit_code >= 0 else 128 - exit_code)
