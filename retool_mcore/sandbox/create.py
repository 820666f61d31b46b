"""Create a sandbox from the configuration, and check that it works."""

import inspect
from collections.abc import Callable, Mapping

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Sandbox, Status
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.isolation import LEVELS
from retool_mcore.sandbox.local import LocalSandbox
from retool_mcore.sandbox.service.pool import PoolSandbox, check_hosts

KINDS: dict[str, Callable[..., Sandbox]] = {"local": LocalSandbox, "fusion": FusionSandbox, "pool": PoolSandbox}
_POSITIVE = ("timeout_s", "memory_mb", "max_output_bytes", "workers", "concurrency", "patience_s", "session_idle_s")
PROBE_TIMEOUT_S = 10.0
# During training a service may be gone for a while and come back; one that is not there at the start never was.
PROBE_PATIENCE_S = 3.0


def create_sandbox(config: Mapping) -> Sandbox:
    """The sandbox that `config` describes; keys left out have the back-end's defaults. Starts nothing yet.

    Keys: kind ("local", "fusion" or "pool"), timeout_s, memory_mb; local: workers, min_isolation, max_isolation,
    preload, max_output_bytes, session_idle_s; fusion: url, max_output_bytes; pool: hosts, hosts_from; both:
    concurrency, patience_s. Raises UserError for an unknown kind or key and for a value that makes no sense.
    """
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise UserError(f"sandbox.kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}.")
    back_end = KINDS[kind]
    keys = inspect.signature(back_end).parameters
    if options.get("workers", 0) is None:
        del options["workers"]
    for key, value in options.items():
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise UserError(f"sandbox.{key} is not a setting of kind {kind!r}; known settings: {known}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in _POSITIVE and not (is_number and value > 0):
            raise UserError(f"sandbox.{key} is {value!r}; it must be a number above 0.")
    for key in ("min_isolation", "max_isolation"):
        if options.get(key, "none") not in LEVELS:
            raise UserError(f"sandbox.{key} is {options[key]!r}; it must be one of {', '.join(LEVELS)}.")
    if kind == "fusion" and not str(options.get("url", "")).startswith(("http://", "https://")):
        raise UserError("sandbox.url must be the http:// address of a SandboxFusion service.")
    if kind == "pool":
        check_hosts(options.get("hosts", ()), options.get("hosts_from"))
    return back_end(**options)


async def probe(sandbox: Sandbox) -> None:
    """Run one tiny program. Raises UserError, in one sentence, when the sandbox does not give the right answer."""
    if isinstance(sandbox, PoolSandbox):
        sandbox = sandbox.impatient(PROBE_PATIENCE_S)
    result = await sandbox.run("print(1+1)", timeout_s=PROBE_TIMEOUT_S)
    if result.status is not Status.SUCCESS or result.stdout.strip() != "2":
        reason = result.observation().strip().replace("\n", " ") or "no output"
        raise UserError(
            f"The sandbox is down: print(1+1) gave {result.status} ({reason}). Start it or correct sandbox.*."
        )


def describe(sandbox: Sandbox) -> str:
    """Say what answered a probe."""
    if isinstance(sandbox, PoolSandbox):
        return f"sandbox service at {sandbox.host_list}"
    return f"isolation: {sandbox.level}"  # type: ignore[attr-defined]
