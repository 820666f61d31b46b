"""Client of a SandboxFusion service: POST {url}/run_code, one request a program.

Isolation and limits are the service's; only the display of a final expression, the clipping of output and the retries
are done here. Reply: {status: "Success" | "Failed" | "SandboxError", message, run_result: {status: "Finished" |
"Error" | "TimeLimitExceeded", stdout, stderr, return_code, execution_time}}.
"""

import asyncio
import re
import secrets
import time

import aiohttp

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.clip import clip
from retool_mcore.sandbox.concurrency import PerLoopSemaphore
from retool_mcore.sandbox.display import displayed, final_expression, strip_fences

ATTEMPTS = 3
BACK_OFF_S = 0.3
CONNECT_TIMEOUT_S = 2.0
# The service also starts an interpreter and may queue the run before its own clock starts.
REPLY_GRACE_S = 60.0


class FusionSandbox:
    """Runs programs in a remote service. Holds no connection between runs, so any event loop or fork may use it."""

    def __init__(
        self,
        *,
        url: str,
        timeout_s: float = 30.0,
        memory_mb: int = 1024,
        max_output_bytes: int = 16384,
        concurrency: int = 16,
    ):
        self.url = url.rstrip("/").removesuffix("/run_code") + "/run_code"
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.max_output_bytes = max_output_bytes
        self._limit = PerLoopSemaphore(concurrency)

    async def run(self, code: str, *, timeout_s: float | None = None, stdin: str = "") -> Result:
        """See Sandbox.run. A service that cannot be reached, or answers with an HTTP error, is asked ATTEMPTS times."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        marker = f"value-{secrets.token_hex(8)}:"
        request = {
            "code": with_marked_value(strip_fences(code), marker),
            "language": "python",
            "run_timeout": timeout_s,
            "memory_limit_MB": self.memory_mb,
            "stdin": stdin,
        }
        async with self._limit.slot():
            started = time.monotonic()
            reason = ""
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(BACK_OFF_S * 2**attempt)
                try:
                    reply = await self._post(request, timeout_s)
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    reason = str(error) or type(error).__name__
                    continue
                return self._result(reply, marker, timeout_s, time.monotonic() - started)
        reason = f"{self.url} did not answer in {ATTEMPTS} attempts: {reason}\n"
        return Result(Status.SANDBOX, "", reason, None, time.monotonic() - started)

    async def close(self) -> None:
        """Nothing to release."""

    async def _post(self, request: dict, timeout_s: float) -> dict:
        limits = aiohttp.ClientTimeout(total=timeout_s + REPLY_GRACE_S, sock_connect=CONNECT_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=limits) as session, session.post(self.url, json=request) as response:
            response.raise_for_status()
            return await response.json()

    def _result(self, reply: dict, marker: str, timeout_s: float, elapsed_s: float) -> Result:
        """A reply in terms of ours; one that is not SandboxFusion's is the sandbox's fault."""
        ran = reply.get("run_result") or {}
        service, ending = reply.get("status"), ran.get("status")
        stdout, value = _split_value(ran.get("stdout") or "", marker)
        stderr = ran.get("stderr") or ""
        last_line = stderr.rstrip().split("\n")[-1]
        code = ran.get("return_code")
        if service not in ("Success", "Failed") or ending not in ("Finished", "Error", "TimeLimitExceeded"):
            message = reply.get("message") or "it has no run_result"
            status, reason = Status.SANDBOX, f"the reply of {self.url} was {service}: {message}"
        elif ending == "TimeLimitExceeded":
            status, reason = Status.TIMEOUT, f"the program ran longer than {timeout_s:g} s and was stopped"
        elif last_line.startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError")):
            status, reason = Status.MEMORY, f"MemoryError: the program needed more than {self.memory_mb} MB"
        elif code is not None and (code < 0 or code > 128):
            number = -code if code < 0 else code - 128
            status, reason = Status.KILLED, f"the program was killed by signal {number}"
        elif code not in (None, 0) or ending == "Error":
            status, reason = Status.ERROR, "" if stderr.strip() else f"the program ended with exit code {code}"
        else:
            status, reason = Status.SUCCESS, ""
        texts = [stdout, stderr, value or ""]
        stdout, stderr, shown = [clip(text, self.max_output_bytes) for text in texts]
        if status is Status.SUCCESS and [stdout, stderr, shown] != texts:
            status = Status.OUTPUT
        if reason:
            stderr += f"\n{reason}\n"
        return Result(status, stdout, stderr, value and shown, float(ran.get("execution_time") or elapsed_s))


def with_marked_value(code: str, marker: str) -> str:
    """`code` whose final expression's repr is printed after `marker`, every line before it where it was.

    The service takes text, not a syntax tree; what does not parse is sent as it is, so that the error is Python's own.
    """
    try:
        displayed(code, "_")
        last = final_expression(compile(code, "<code>", "exec", flags=0x400, dont_inherit=True), code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if last is None:
        return code
    lines = re.split(r"\r\n|\r|\n", code)
    before = lines[last.lineno - 1].encode()[: last.col_offset].decode()
    expression = lines[last.lineno - 1 : last.end_lineno]
    expression[-1] = expression[-1].encode()[: last.end_col_offset].decode()
    expression[0] = expression[0].encode()[last.col_offset :].decode()
    name = "_retool_value"
    source = "\n".join([*lines[: last.lineno - 1], f"{before}{name} = (" + "\n".join(expression)])
    return f"{source}\n)\nif {name} is not None:\n    print({marker!r} + repr({name}))\n"


def _split_value(stdout: str, marker: str) -> tuple[str, str | None]:
    printed, found, value = stdout.rpartition(marker)
    return (printed, value.removesuffix("\n")) if found else (stdout, None)
