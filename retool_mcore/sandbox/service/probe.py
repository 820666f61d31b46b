"""One service, asked how it is."""

import time

from retool_mcore.files import shown
from retool_mcore.sandbox.create import probe
from retool_mcore.sandbox.fusion import FusionSandbox


async def probe_url(url: str) -> str:
    """One line. Raises UserError when no right answer comes from there."""
    # The dialect that both kinds of service speak.
    sandbox = FusionSandbox(url=url)
    await probe(sandbox)
    started = time.perf_counter()
    await probe(sandbox)
    answer_ms = (time.perf_counter() - started) * 1e3
    state = await sandbox.health()
    if state is None:
        kind = "a SandboxFusion service"
    else:
        kind = "{level}, {running} running, {queued} queued, {slots} at once, {status}".format(**state)
        kind = f"isolation: {kind}"
    await sandbox.close()
    return f"{shown(url)}: {kind}; print(1+1) in {answer_ms:.1f} ms"
