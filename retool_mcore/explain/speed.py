"""Causes of slow steps: tools keep the engine waiting, or the host does."""

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import Prepared

TOOLS = 0.3  # of the step, in which programs run and nothing generates
HOST = 0.5  # of the step, in which nothing is asked of any GPU


def tool_latency(p: Prepared) -> Finding | None:
    """Programs run while nothing generates."""
    share = p.late_mean("timing_share/tools")
    if share is None or share < TOOLS:
        return None
    latency, queued = p.late_mean("behaviour/tool_latency_s/p95"), p.late_mean("behaviour/tool_queued_share") or 0.0
    what = f"in {share:.0%} of a step's time programs run and nothing generates"
    if latency is not None:
        what += f"; a call takes up to {latency:.1f} s (95th percentile) and queues for {queued:.0%} of its wait"
    slow = sorted(p.late, key=lambda record: record["tool_s"], reverse=True)
    looks = tuple((record["step"], record["row"]) for record in slow[:2])
    if queued > 0.5:
        return Finding("tools slow", 0.55, what, "sandbox.workers", "raise it: calls wait for a place", looks)
    return Finding("tools slow", 0.55, what, "sandbox.timeout_s", "lower it, or make the tool faster", looks)


def host_bound(p: Prepared) -> Finding | None:
    """The GPUs wait for the host."""
    share = p.late_mean("timing_share/no_gpu_work")
    if share is None or share < HOST or p.key("parallel.device") != "cuda":
        return None
    names = ("rollout_rest", "reward", "checkpoint", "other")
    parts = {name: p.late_mean(f"timing_share/{name}") or 0.0 for name in names}
    longest = max(parts, key=lambda name: parts[name])
    key, how = {
        "rollout_rest": ("parallel.agent_workers", "raise it: episodes wait for their event loops"),
        "reward": ("parallel.reward_workers", "raise it"),
        "checkpoint": ("train.save_every", "raise it"),
        "other": ("parallel.agent_workers", "see the step's timeline in `retool view`"),
    }[longest]
    what = f"in {share:.0%} of a step's time nothing is asked of any GPU, most of it {longest} ({parts[longest]:.0%})"
    return Finding("host-bound", 0.5, what, key, how)
