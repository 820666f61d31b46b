"""Official graders, each in a sandbox of its own: a warm interpreter has imported the package, one request is one run.

What a request holds, the truth included, reaches the grader over standard input; its reply is the value of the run's
last expression. The process that asks imports none of these packages (`find_spec` reads no code of theirs).
"""

import ast
import asyncio
import functools
import json
import os
import secrets
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local.sandbox import ANSWERS, LocalSandbox

INSIDE = f"{__package__}.inside"
REPLY_FILE = "reply.json"
MAX_REPLY_BYTES = 65536
# `begin` comes before the request is read: what it starts never holds the request in its memory.
_PROGRAM = """
import json, sys
from {package} import {module} as grader
getattr(grader, "begin", int)()
request = json.load(sys.stdin)
nonce = request.pop("nonce")
reply = json.dumps([nonce, getattr(grader, {function!r})(**request)])
open({file!r}, "w").write(reply) if {in_file} else reply
"""


@dataclass(frozen=True)
class Grader:
    """An official grader.

    module: of the folder inside/, with the functions that can be asked; others: the modules of that folder that it
    imports, first ones first. package: the one that the sandbox imports, None where the grader needs none; named: what
    follows `pip install`, with the version that is known to work. memory_mb: of one request.
    """

    module: str
    package: str | None
    named: str
    others: tuple[str, ...] = ()
    memory_mb: int = 1024

    def check(self) -> None:
        """Raise UserError, with the command that installs it, where the package is missing."""
        if self.package:
            package_folder(self.package, self.named)

    def ask(
        self,
        function: str,
        timeout_s: float,
        /,
        *,
        min_isolation: str | None = None,
        in_file: bool = False,
        **request: Any,
    ) -> Any:
        """Return what `function` of the module returns for these keywords, a value of JSON; None where the run ended
        otherwise: at a limit of time or memory, or with an error.

        in_file: the reply is long, and nothing of the policy's runs. Raises UserError when the package is missing or
        this machine cannot give the isolation, RuntimeError when the sandbox itself failed.
        """
        folder = package_folder(self.package, self.named) if self.package else None
        sandbox = _sandbox(self, min_isolation, folder, os.getpid())
        nonce = secrets.token_hex(16)
        asked = {"module": self.module, "function": function, "file": REPLY_FILE, "in_file": in_file}
        result = _in_background(
            sandbox.run(
                _PROGRAM.format(package=INSIDE, **asked),
                timeout_s=timeout_s,
                memory_mb=self.memory_mb,
                stdin=json.dumps(request | {"nonce": nonce}),
                fetch_files=[REPLY_FILE] if in_file else [],
            )
        )
        if result.status is Status.SANDBOX:
            raise RuntimeError(f"the sandbox of the grader {self.module} failed: {result.stderr.strip()}")
        if result.status is not Status.SUCCESS:
            return None
        try:
            text = result.files[REPLY_FILE] if in_file else ast.literal_eval(result.value)
            written, reply = json.loads(text)
        except (KeyError, ValueError, TypeError, SyntaxError, RecursionError):
            return None
        return reply if written == nonce else None


def package_folder(package: str, named: str) -> Path:
    """The folder that holds an installed package. Raises UserError, with the command that installs it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"the package {package} is not installed: run `pip install {named}`.")
    return Path(spec.origin).resolve().parent.parent


@functools.cache
def _sandbox(grader: Grader, min_isolation: str | None, folder: Path | None, process: int) -> LocalSandbox:
    """`process`: the id of this one, which a fork does not share."""
    here = Path(__file__).parent / "inside"
    names = (*grader.others, grader.module)
    return LocalSandbox(
        memory_mb=grader.memory_mb,
        max_output_bytes=MAX_REPLY_BYTES,
        min_isolation=min_isolation,
        preload=(),  # the module imports it, with stand-ins for what it imports and does not use
        hidden=tuple(name for name in ANSWERS if name != grader.package),
        modules={f"{INSIDE}.{name}": (here / f"{name}.py").read_text() for name in names},
        folders=(str(folder),) if folder else (),
    )


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """An event loop in a thread: rewards are called in threads that have none."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="official graders", daemon=True).start()
    return loop


def _in_background(run) -> Any:
    return asyncio.run_coroutine_threadsafe(run, _loop(os.getpid())).result()
