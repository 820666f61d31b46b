"""How a job ends: with its last sentence, or back in the queue. Both go into the stage's chain (state/chain.py)."""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from retool_mcore.cluster import slurm
from retool_mcore.cluster.allocation import Allocation
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.retry import judge
from retool_mcore.cluster.site import Site
from retool_mcore.state import chain

say = partial(print, flush=True)
CANCELLED = 128 + signal.SIGTERM


def after_failure(
    stage: str,
    allocation: Allocation,
    site: Site,
    signals: Signals,
    folder: Path,
    error: str,
    bad: Sequence[str] = (),
) -> int:
    """Back to the queue, without the `bad` nodes, if the stage deserves another attempt; the exit code."""
    say(f"retool: {error}")
    decision = judge(folder, error, site.max_attempts, bad)
    why = f"{stage}: {decision.why}".removesuffix(".")
    if not decision.requeue:
        return finish(signals, chain.FAULT, f"{why}.", 1, error)
    return back_to_queue(allocation, signals, chain.FAULT, why, 1, bad, error=error)


def back_to_queue(
    allocation: Allocation,
    signals: Signals,
    why: str,
    text: str,
    otherwise: int,
    bad: Sequence[str] = (),
    *,
    after: str | None = None,
    error: str = "",
) -> int:
    """Puts the job back into the queue, for other nodes than the `bad` ones where there are enough of them, and behind
    the job `after`.

    Args:
        why: the start ends, in a word of state/chain.py.
        text: the same as a sentence, without its end.
        error: what the stage failed with.

    Returns:
        The job's exit code: `otherwise` when Slurm refuses, that of a cancelled job when scancel came meanwhile.
    """
    signals.ignore()  # Slurm's SIGTERM to a job that it requeues, too: what follows the requeue takes a moment
    job = allocation.slurm_id
    if signals.cancelled(job, allocation.restart):
        text = f"{text}; job {job} was cancelled meanwhile and does not go back to the queue."
        return finish(signals, chain.CANCELLED, text, CANCELLED)
    chain.end(signals.folder, signals.mark, why, error or text)
    refusal = None if slurm.sent_back(job, allocation.restart) else slurm.requeue(job)
    if refusal is not None:
        say(f"{text}; Slurm does not requeue job {job}: {refusal}")
        return otherwise
    text += f"; job {job} is back in the queue"
    # Again where Slurm's SIGTERM to all of the job's processes, which comes now, ended one that asks Slurm.
    if bad and any(slurm.avoid(job, bad, len(allocation.nodes)) for _ in range(3)):
        chain.end(signals.folder, signals.mark, why, error or text, avoids=bad)
        text += f" and keeps off {', '.join(bad)}"
    if after and any(slurm.start_after(job, after) for _ in range(3)):
        text += f" and waits for job {after}"
    say(f"{text}.")
    return 0


def finish(signals: Signals, why: str, text: str, code: int, error: str = "") -> int:
    """Ends the job with its last sentence, `text`; its exit code. why, error: as of `back_to_queue`."""
    chain.end(signals.folder, signals.mark, why, error or text)
    say(text)
    return code
