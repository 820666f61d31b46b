"""A rollout engine in events: continuous batching over a KV cache that fills, evicts and preempts.

Between two events nothing of an engine changes but how many tokens each running trajectory has, the same number for
all; so no decode step is played alone. The cache is vLLM's (v1/core/kv_cache_manager.py, v1/core/sched): what a turn
leaves stays until others need the room, the longest unused first; a turn is admitted when its context has room; when
the running ones fill the cache, the last that was admitted goes back to the head of the queue.
"""

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from retool_mcore.planner.rollout import Costs

NEARLY = 1e-6  # tokens
# Seconds with nothing to do (tools: but for programs of its trajectories), trajectories' seconds, tokens, preemptions.
SPENT = ("tools", "empty", "running", "sampled", "read_in", "sent", "missed", "preempted")
BLOCK = 16  # tokens of the cache that are found again whole or not at all


class Clock:
    """Plays events by their time; of the same time, the one that was made first."""

    def __init__(self) -> None:
        self.now, self.events, self.made = 0.0, [], itertools.count()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.made), act))

    def run(self, enough: Callable[[], bool] = lambda: False, seconds: float = math.inf) -> float:
        """Plays until `enough`, or for so many seconds; returns how many they were."""
        start, end = self.now, self.now + seconds
        while not enough() and self.events and self.events[0][0] <= end:
            self.now, _, act = heapq.heappop(self.events)
            act()
        self.now = end if seconds < math.inf else self.now
        return self.now - start


@dataclass(eq=False, slots=True)
class Trajectory:
    """Turns as (tokens that are read in: the prompt or an observation, tokens that are sampled), and the seconds that
    the tool takes after each but the last."""

    turns: list[tuple[float, float]]
    waits: list[float]
    group: int = 0
    version: int = 0  # of the policy that wrote the first token
    process: Generator[None] | None = None  # what goes on when a turn or a tool has ended
    known: float = 0.0  # tokens so far
    again: float = 0.0  # of them sent again by this turn
    left: float = 0.0  # to be sampled in this turn

    @property
    def tokens(self) -> float:
        return sum(map(sum, self.turns))

    def go_on(self) -> None:
        next(self.process, None)


class Engine:
    """One replica of vLLM, whose KV cache holds `capacity` tokens and which works at `most` trajectories at once."""

    def __init__(self, clock: Clock, costs: Costs, capacity: float, most: int):
        self.clock, self.costs, self.capacity, self.most = clock, costs, capacity, most
        self.waiting: deque[Trajectory] = deque()
        self.running: dict[Trajectory, tuple[int, float]] = {}  # number of its admission, position then
        self.ends: list[tuple[float, int, Trajectory]] = []  # position at which its turn ends
        self.kept: OrderedDict[Trajectory, float] = OrderedDict()  # tokens of those that are away, oldest first
        self.position = self.context = self.kept_tokens = self.stall = self.since = 0.0
        self.admitted = self.planned = 0
        self.load = self.members = 0  # turns that are waiting or running, trajectories that are not finished
        self.open = True
        self.spent = dict.fromkeys(SPENT, 0.0)

    def submit(self, trajectory: Trajectory, given: float, sampled: float) -> None:
        """The next turn: `given` new tokens and all before them are sent."""
        trajectory.again, trajectory.left = trajectory.known, sampled
        trajectory.known += given
        self.load += 1
        self.waiting.append(trajectory)
        self._go_on()

    def hold(self) -> None:
        """Weights change: what is running waits until `resume`, and nothing that the cache holds is of use any more."""
        self._advance()
        self.open, self.stall = False, 0.0
        for trajectory in reversed(list(self.running)):
            self.waiting.appendleft(self._leave(trajectory))
        self.kept.clear()
        self.kept_tokens = 0.0

    def resume(self) -> None:
        self._advance()
        self.open = True
        self._go_on()

    def _rates(self) -> tuple[float, float]:
        """Seconds of the next decode step, and what each step adds to those of the one before it."""
        count, costs = len(self.running), self.costs
        read, multiplied = costs.weights + costs.context * self.context, costs.token * count
        return max(read, multiplied) + costs.launch, costs.context * count * (read >= multiplied)

    def _advance(self) -> None:
        passed, self.since = self.clock.now - self.since, self.clock.now
        count = len(self.running)
        if not count:
            self.spent["tools" if self.members else "empty"] += passed * self.open
            return
        stalled = min(passed, self.stall)
        self.stall -= stalled
        first, more = self._rates()
        time = passed - stalled
        steps = (math.sqrt(first**2 + 2 * more * time) - first) / more if more else time / first
        self.position += steps
        self.context += steps * count
        self.spent["sampled"] += steps * count
        self.spent["running"] += passed * count

    def _go_on(self, planned: int | None = None) -> None:
        """Ends what has its tokens, preempts or admits, and says when to look again. planned: as which number that was
        said, which is nothing to go by where something has happened since."""
        if planned is not None and planned != self.planned:
            return
        self._advance()
        finished = []
        while self.ends:
            end, number, trajectory = self.ends[0]
            there = trajectory in self.running and self.running[trajectory][0] == number
            if there and end > self.position + NEARLY:
                break
            heapq.heappop(self.ends)
            finished += [self._leave(trajectory)] if there else []
        if len(self.running) > 1 and self.context + len(self.running) * NEARLY >= self.capacity:
            self.waiting.appendleft(self._leave(next(reversed(self.running))))
            self.spent["preempted"] += 1
        elif self.open:
            self._admit()
        while self.kept and (over := self.context + self.kept_tokens - self.capacity) > 0:
            oldest = next(iter(self.kept))
            if over >= self.kept[oldest]:
                self._forget(oldest)
            else:
                self.kept[oldest] -= over
                self.kept_tokens -= over
        self._plan()
        self.load -= len(finished)
        for trajectory in finished:
            trajectory.go_on()

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.most:
            trajectory, costs = self.waiting[0], self.costs
            if self.running and self.context + trajectory.known + len(self.running) + 1 > self.capacity:
                return
            self.waiting.popleft()
            held = BLOCK * (min(self._forget(trajectory), trajectory.known - 1) // BLOCK)
            read_in = trajectory.known - held
            self.spent["read_in"] += read_in
            self.spent["sent"] += trajectory.again
            self.spent["missed"] += max(0.0, trajectory.again - held)
            trajectory.again = 0.0  # once a turn, however often it is preempted
            self.stall += read_in * (costs.token + costs.pair * (held + read_in / 2))
            self.context += trajectory.known
            self.admitted += 1
            self.running[trajectory] = self.admitted, self.position
            heapq.heappush(self.ends, (self.position + trajectory.left, self.admitted, trajectory))

    def _leave(self, trajectory: Trajectory) -> Trajectory:
        _, start = self.running.pop(trajectory)
        got = min(self.position - start, trajectory.left)
        trajectory.known += got
        trajectory.left -= got
        self.context = self.context - trajectory.known if self.running else 0.0
        self.kept[trajectory] = trajectory.known
        self.kept_tokens += trajectory.known
        return trajectory

    def _forget(self, trajectory: Trajectory) -> float:
        """Returns how many of its tokens the cache held while it was away."""
        held = self.kept.pop(trajectory, 0.0)
        self.kept_tokens -= held
        return held

    def _plan(self) -> None:
        self.planned += 1
        planned, count = self.planned, len(self.running)
        if not count:
            return
        first, more = self._rates()
        steps = min(self.ends[0][0] - self.position, (self.capacity - self.context) / count if count > 1 else math.inf)
        if not more:  # until reading takes longer than multiplying
            most = (self.costs.token * count - self.costs.weights) / self.costs.context
            steps = min(steps, (most - self.context) / count + NEARLY)
        steps = max(steps, NEARLY)
        self.clock.after(self.stall + steps * (first + more * steps / 2), lambda: self._go_on(planned))
