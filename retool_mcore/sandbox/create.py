"""From configuration to a sandbox, and the question whether it works."""

from collections.abc import Mapping

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Sandbox, Status
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.isolation import LEVELS
from retool_mcore.sandbox.local import LocalSandbox

_COMMON = {"timeout_s", "memory_mb", "max_output_bytes"}
KINDS = {
    "local": (LocalSandbox, _COMMON | {"workers", "min_isolation", "preload"}),
    "fusion": (FusionSandbox, _COMMON | {"url", "concurrency"}),
}
_POSITIVE = ("timeout_s", "memory_mb", "max_output_bytes", "workers", "concurrency")
PROBE_TIMEOUT_S = 10.0


def create_sandbox(config: Mapping) -> Sandbox:
    """The sandbox that `config` describes; keys left out have the back-end's defaults. Starts nothing yet.

    Keys: kind ("local" or "fusion"), timeout_s, memory_mb, max_output_bytes; local: workers, min_isolation, preload;
    fusion: url, concurrency. Raises UserError for an unknown kind or key and for a value that makes no sense.
    """
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise UserError(f"sandbox.kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}.")
    back_end, keys = KINDS[kind]
    for key, value in options.items():
        if key not in keys:
            raise UserError(
                f"sandbox.{key} is not a setting of kind {kind!r}; known settings: {', '.join(sorted(keys))}."
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in _POSITIVE and not (is_number and value > 0):
            raise UserError(f"sandbox.{key} is {value!r}; it must be a number above 0.")
    if options.get("min_isolation", "none") not in LEVELS:
        raise UserError(
            f"sandbox.min_isolation is {options['min_isolation']!r}; it must be one of {', '.join(LEVELS)}."
        )
    if kind == "fusion" and not str(options.get("url", "")).startswith(("http://", "https://")):
        raise UserError("sandbox.url must be the http:// address of a SandboxFusion service.")
    return back_end(**options)


async def probe(sandbox: Sandbox) -> None:
    """Run one tiny program. Raises UserError, in one sentence, when the sandbox does not give the right answer."""
    result = await sandbox.run("print(1+1)", timeout_s=PROBE_TIMEOUT_S)
    if result.status is not Status.SUCCESS or result.stdout.strip() != "2":
        reason = result.observation().strip().replace("\n", " ") or "no output"
        raise UserError(
            f"The sandbox is down: print(1+1) gave {result.status} ({reason}). Start it or correct sandbox.*."
        )
