"""The chain of a long stage for `retool status`: its starts as a table, and in one sentence what it lost and when it
ends."""

import time
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from retool_mcore.runner.phase_line import duration
from retool_mcore.state import chain
from retool_mcore.state.chain import Chain, Start

SHOWN = 12  # the newest starts
TITLES = ("start", "job", "nodes", "began", "ran", "steps", "ended")
NAMES = {chain.FAULT: "faults", chain.PREEMPTION: "preemption"}


def print_chain(stage: str, found: Chain, console: Console, now_s: float | None = None) -> None:
    """Prints the chain of a stage that was started more than once, or whose only start met a fault."""
    if len(found.starts) < 2 and not found.lost_s and not any(start.why in NAMES for start in found.starts):
        return
    now_s = time.time() if now_s is None else now_s
    left_out = len(found.starts) - SHOWN
    table = Table(*TITLES, title=f"{stage}: starts" + (f", the last {SHOWN} of {len(found.starts)}" * (left_out > 0)))
    for number, start in list(enumerate(found.starts, start=1))[-SHOWN:]:
        table.add_row(*map(escape, cells(number, start, now_s)))
    console.print(table)
    console.print(f"{stage}: {sentence(found, now_s)}", markup=False, soft_wrap=True)


def cells(number: int, start: Start, now_s: float) -> tuple[str, ...]:
    """A row of the table, in the order of TITLES. number: from 1, of all starts of the stage."""
    began = "-" if start.began is None else _day(start.began)
    end = now_s if start.ended is None and not start.why else start.ended
    ran = "-" if start.began is None or end is None else duration(end - start.began)
    steps = f"{start.steps[0]}-{start.steps[1]}" if start.steps else "-"
    why = start.why or "no end yet"
    if start.text and start.why not in (chain.TIME_LIMIT, chain.COMPLETE):
        why += f": {start.text}"
    job = f"{start.job}, start {start.number}" if start.job else "-"
    return str(number), job, ", ".join(start.nodes) or "-", began, ran, steps, why


def sentence(found: Chain, now_s: float) -> str:
    """Say what the chain has done so far, and what comes next where the stage runs."""
    jobs = list(dict.fromkeys(start.job for start in found.starts if start.job))
    of = f" of job{'s' * (len(jobs) > 1)} {', '.join(jobs)}" if jobs else ""
    parts = [f"{len(found.starts)} start{'s' * (len(found.starts) > 1)}{of}"]
    parts += [f"lost to {NAMES[why]}: {seconds / 3600:.1f} h" for why, seconds in found.lost_s.items()]
    if found.avoided:
        parts.append(f"keeps off {', '.join(found.avoided)}")
    if found.next_save is not None:
        parts.append(f"next save in {duration(max(found.next_save - now_s, 0.0))}")
    if found.complete_at is not None:
        parts.append(f"complete about {_day(found.complete_at)} if all goes on as so far")
    return "; ".join(parts)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%a %b %d %H:%M")
