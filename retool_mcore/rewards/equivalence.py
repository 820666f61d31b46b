"""Whether two final answers mean the same: exact forms in this process, math-verify in processes that can be killed.

Most pairs are decided here in microseconds (`grader/structure.py`); the rest goes to a small pool of workers
(`grader/pool.py`). No signals, no fork of this process: usable from any thread, Ray actor or event loop. A call blocks
its caller for up to the time-out; a coroutine awaits `equivalent_async`.
"""

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from retool_mcore.rewards.grader.pool import Pool
from retool_mcore.rewards.grader.structure import decide

# Below a second with room for the kill itself; math-verify's own median is 5 ms.
TIMEOUT_S = 0.7


@dataclass(eq=False)
class Grader:
    """Compares answers; owns its worker processes, started at the first comparison that needs one.

    timeout_s: seconds one comparison may take before its worker is killed; the start does not count, nor does the wait
    for a free worker. workers: how many comparisons run at a time. memory_mb: address space of a worker in MiB.
    memo_size: verdicts kept, those not asked for the longest leave first. rounded: whether decimals may stand for exact
    values (`grader/structure.py::decide`). Comparisons that end in a kill or a crash
    count as not equivalent and are not remembered, since a machine under load may have caused them.
    """

    timeout_s: float = TIMEOUT_S
    workers: int = 2
    memory_mb: int = 2048
    memo_size: int = 100_000
    rounded: bool = False

    def __post_init__(self):
        self._options: dict[str, Any] = {"rounded": True} if self.rounded else {}
        self.pool = Pool(self.workers, self.timeout_s, self.memory_mb)
        self._counts = {"front": 0, "memo": 0, "engine": 0}
        self._memo = LRUCache(self.memo_size)
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def equivalent(self, answer: str, truth: str) -> bool:
        """Whether `answer` means the same as `truth`; blocks for at most the time-out (and once for the start).

        Raises RuntimeError when no worker can be started, or in a forked child (which needs a Grader of its own).
        """
        return bool(self.decide(answer, truth)[0])

    def decide(self, answer: str, truth: str) -> tuple[bool | None, str]:
        """(`equivalent`, or None when the comparison ended in a kill or crash; which part decided, see `counters`)."""
        verdict, by = self._without_engine(answer, truth)
        return self._with_engine(answer, truth) if verdict is None else (verdict, by)

    async def equivalent_async(self, answer: str, truth: str) -> bool:
        """`equivalent` for a coroutine: the event loop goes on while a worker compares."""
        verdict, _ = self._without_engine(answer, truth)
        return bool((await asyncio.to_thread(self._with_engine, answer, truth))[0]) if verdict is None else verdict

    def counters(self) -> dict[str, int]:
        """Comparisons so far: decided in front, from memory, by math-verify, and ended in a kill or crash."""
        return {**self._counts, "killed": self.pool.killed}

    def _without_engine(self, answer: str, truth: str) -> tuple[bool | None, str]:
        with self._lock:
            verdict = self._memo.get((answer, truth))
            if verdict is not None:
                self._counts["memo"] += 1
                return verdict, "memo"
        verdict = decide(answer, truth, **self._options)
        if verdict is not None:
            self._remember(answer, truth, verdict, "front")
        return verdict, "front"

    def _with_engine(self, answer: str, truth: str) -> tuple[bool | None, str]:
        verdict = self.compare_in_worker(answer, truth)
        if verdict is None:
            return None, "killed"
        self._remember(answer, truth, verdict, "engine")
        return verdict, "engine"

    def compare_in_worker(self, answer: str, truth: str) -> bool | None:
        """The worker's verdict, neither decided nor remembered in this process; None when it had to be killed."""
        if os.getpid() != self._pid:
            raise RuntimeError("a Grader does not survive a fork: make one in the child process, or use equivalent()")
        return self.pool.compare(answer, truth, **self._options)

    def _remember(self, answer: str, truth: str, verdict: bool, by: str) -> None:
        with self._lock:
            self._counts[by] += 1
            # A long answer is refused in no time and not worth its memory: at most some 50 MB in all.
            if len(answer) + len(truth) < 400:
                self._memo[answer, truth] = verdict

    def close(self) -> None:
        """End the workers. A later comparison starts new ones."""
        self.pool.close()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()


# By process id, so that a forked child does not share its parent's sockets. The workers end by themselves when they
# close.
_graders: dict[int | tuple[int, str], Grader] = {}


def _own(rounded: bool = False) -> Grader:
    key = (os.getpid(), "rounded") if rounded else os.getpid()
    # setdefault is atomic; a Grader lost in a race between two threads has started nothing.
    return _graders.get(key) or _graders.setdefault(key, Grader(rounded=rounded))


def equivalent(answer: str, truth: str) -> bool:
    """`Grader.equivalent` of this process's own grader, made at the first call; it lives as long as the process."""
    return _own().equivalent(answer, truth)


def decide_once(answer: str, truth: str, rounded: bool = False) -> tuple[bool | None, str]:
    """`Grader.decide` of this process's own grader, one for each value of `rounded`."""
    return _own(rounded).decide(answer, truth)
