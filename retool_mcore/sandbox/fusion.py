"""Client of a SandboxFusion service: POST {url}/run_code, one request a program.

Isolation and limits are the service's; only the display of a final expression, the clipping of output and the retries
are done here. Reply: {status: "Success" | "Failed" | "SandboxError", message, run_result: {status: "Finished" |
"Error" | "TimeLimitExceeded", stdout, stderr, return_code, execution_time}, files}.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.clip import clip
from retool_mcore.sandbox.display import MAX_PARSED_CHARS, displayed, final_expression, strip_fences
from retool_mcore.sandbox.service.pool import PoolSandbox

_MARKER = "value-{}:"


@dataclass(eq=False, kw_only=True)
class FusionSandbox(PoolSandbox):
    """Runs programs in one foreign service, which knows neither request ids nor sessions."""

    health_path = "/v1/ping"

    hosts: Sequence[str] = field(default=(), init=False)
    hosts_from: None = field(default=None, init=False)
    url: str
    max_output_bytes: int = 16384
    concurrency: int = 16

    def __post_init__(self):
        self.hosts = [self.url]
        super().__post_init__()

    async def run(self, code: str, *, session: str | None = None, **options: Any) -> Result:  # type: ignore[override]
        """See Sandbox.run. Raises UserError for a session, which SandboxFusion does not have."""
        if session is not None:
            raise UserError("SandboxFusion has no sessions: set sandbox.kind to local or pool.")
        return await super().run(strip_fences(code), **options)

    def _identified(self, request: dict, request_id: str, key: str) -> dict:
        return request | {"marker": _MARKER.format(request_id)}

    def _payload(self, request: dict) -> dict:
        fields = {name: value for name, value in request.items() if name != "marker"}
        return fields | {"code": with_marked_value(request["code"], request["marker"])}

    def _result(self, reply: dict, request: dict, elapsed_s: float) -> Result:
        """A reply in terms of ours; one that is not SandboxFusion's is the sandbox's fault."""
        if not isinstance(reply, dict):
            raise ValueError("the reply is not an object")
        ran = reply.get("run_result") or {}
        service, ending = reply.get("status"), ran.get("status")
        printed, marked, text = (ran.get("stdout") or "").rpartition(request["marker"])
        stdout, value = (printed, text.removesuffix("\n")) if marked else (text, None)
        stderr = ran.get("stderr") or ""
        last_line = stderr.rstrip().split("\n")[-1]
        code = ran.get("return_code")
        if service not in ("Success", "Failed") or ending not in ("Finished", "Error", "TimeLimitExceeded"):
            message = reply.get("message") or "it has no run_result"
            status, reason = Status.SANDBOX, f"the reply of the service was {service}: {message}"
        elif ending == "TimeLimitExceeded":
            status, reason = Status.TIMEOUT, f"the program ran longer than {request['run_timeout']:g} s and was stopped"
        elif last_line.startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError")):
            limit_mb = request["memory_limit_MB"]
            status, reason = Status.MEMORY, f"MemoryError: the program needed more than {limit_mb} MB"
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
        files = {path: base64.b64decode(text) for path, text in (reply.get("files") or {}).items()}
        duration_s = float(ran.get("execution_time") or elapsed_s)
        return Result(status, stdout, stderr, value and shown, duration_s, code, files)


def with_marked_value(code: str, marker: str) -> str:
    """`code` whose final expression's repr is printed after `marker`, every line before it where it was.

    The service takes text, not a syntax tree; what does not parse is sent as it is, so that the error is Python's own,
    and so is what has more than MAX_PARSED_CHARS.
    """
    if len(code) > MAX_PARSED_CHARS:
        return code
    try:
        displayed(code, "_")
        tree: Any = compile(code, "<code>", "exec", flags=0x400, dont_inherit=True)
        last = final_expression(tree, code)
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
