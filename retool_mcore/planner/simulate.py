"""Whole steps of a run in events, over the planner's costs: `retool simulate`.

The trainer's phases take what the planner says; generation is played (serving.py): trajectories with turns and tools
through engines whose caches fill. The order is that of verl's trainers: prompts of so many batches ahead are at work;
the trainer waits for a mini-batch of whole groups, and as long as one of `bound` steps ago is unfinished; after the
step's updates it pushes the weights, at which unfinished trajectories wait and are then read in anew.
"""

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from retool_mcore.planner.rollout import PUSH_S, Costs
from retool_mcore.planner.search import Plan, Problem
from retool_mcore.planner.serving import SPENT, Clock, Engine, Trajectory
from retool_mcore.rollout.live import Live

LOAD = attrgetter("load")


@dataclass(frozen=True)
class Order:
    """How generation and training take turns."""

    group: int  # trajectories a prompt
    slots: int  # programs at once in the sandboxes
    train_s: float  # seconds of a step's training
    push_s: float = PUSH_S
    updates: int = 1  # of a step, which need not wait for each other's groups
    ahead: float = 0.0  # batches at work beyond the one that is trained
    colocated: bool = True  # on the same GPUs
    live: int | None = None  # trajectories at work at once; None: by the caches, as `retool rl` does
    sticky: int = 10_000  # trajectories whose engine verl's router remembers (workers/rollout/router.py)

    @property
    def bound(self) -> int:
        """Pushes after which a group is waited for; where others went first it is trained one later."""
        return math.ceil(self.ahead)


@dataclass
class Step:
    """Seconds of a step, and what it was trained on."""

    waited: float = 0.0  # the trainer, for trajectories
    trained: float = 0.0
    pushed: float = 0.0
    tokens: float = 0.0
    staleness: list[int] = field(default_factory=list)  # of each trajectory
    spent: Mapping[str, float] = field(default_factory=dict)  # by all engines in this step: Engine.spent

    @property
    def seconds(self) -> float:
        return self.waited + self.trained + self.pushed


class Simulation:
    """engines: replicas; drawn: groups of trajectories, without end."""

    def __init__(self, problem: Problem, plan: Plan, order: Order, engines: int, drawn: Iterator[list[Trajectory]]):
        self.order, self.drawn, self.clock = order, drawn, Clock()
        engine, sequences = plan.rollout, len(problem.batch.lengths)
        arguments = Costs.of(problem.shape, problem.machine, engine.tp), engine.cache_tokens, engine.max_num_seqs
        self.engines = [Engine(self.clock, *arguments) for _ in range(engines)]
        self.live = Live(engine.cache_tokens * engines, problem.batch.longest, sequences, order.live)
        self.batch = sequences // order.group  # groups
        self.queue: deque[Trajectory] = deque()
        self.free = [
            0.0
        ] * order.slots  # when each slot of the sandboxes is free: the first that is takes the next call
        self.places: OrderedDict[Trajectory, Engine] = OrderedDict()  # the router's memory
        self.groups: list[list[Trajectory]] = []  # by number, those of each that have finished
        self.issued: list[int] = []  # by number, the step
        self.unfinished: Counter[int] = Counter()  # groups by that step
        self.ready: list[int] = []  # numbers of whole groups, the oldest first
        self.at_work = self.version = 0

    def step(self) -> Step:
        """Plays one step of the trainer."""
        order, result, before = self.order, Step(), self._spent()
        while len(self.groups) < int(self.batch * (self.version + 1 + order.ahead)):
            self._issue(next(self.drawn))
        self._start()
        for _ in range(order.updates):
            result.waited += self.clock.run(self._enough)
            for number in [heapq.heappop(self.ready) for _ in range(self.batch // order.updates)]:
                result.tokens += sum(trajectory.tokens for trajectory in self.groups[number])
                result.staleness += [self.version - trajectory.version for trajectory in self.groups[number]]
            if order.colocated:
                self._each(Engine.hold)
            result.trained += self.clock.run(seconds=order.train_s / order.updates)
        self._each(Engine.hold)
        result.pushed = self.clock.run(seconds=order.push_s)
        self.version += 1
        self._each(Engine.resume)
        result.spent = {name: now - before.get(name, 0.0) for name, now in self._spent().items()}
        return result

    def _enough(self) -> bool:
        """A mini-batch is whole, and no group that would become too old is unfinished."""
        old = any(count for step, count in self.unfinished.items() if step <= self.version - self.order.bound)
        return len(self.ready) >= self.batch // self.order.updates and not old

    def _each(self, act: Callable[[Engine], None]) -> None:
        for engine in self.engines:
            act(engine)

    def _spent(self) -> dict[str, float]:
        return {name: sum(engine.spent[name] for engine in self.engines) for name in SPENT}

    def _issue(self, group: list[Trajectory]) -> None:
        for trajectory in group:
            trajectory.group, trajectory.process = len(self.groups), self._play(trajectory)
        self.groups.append([])
        self.issued.append(self.version)
        self.unfinished[self.version] += 1
        self.queue.extend(group)

    def _start(self) -> None:
        while self.queue and self.at_work < self.live.bound:
            self.at_work += 1
            self.queue.popleft().go_on()

    def _play(self, trajectory: Trajectory) -> Generator[None]:
        trajectory.version = self.version
        for number, (prefilled, sampled) in enumerate(trajectory.turns):
            self._place(trajectory).submit(trajectory, prefilled, sampled)
            yield
            if number < len(trajectory.waits):
                ended = max(self.clock.now, self.free[0]) + trajectory.waits[number]
                heapq.heapreplace(self.free, ended)
                self.clock.after(ended - self.clock.now, trajectory.go_on)
                yield
        self._place(trajectory).members -= 1
        del self.places[trajectory]
        self.at_work -= 1
        self.live.ended(round(trajectory.tokens))
        group = self.groups[trajectory.group]
        group.append(trajectory)
        if len(group) == self.order.group:
            self.unfinished[self.issued[trajectory.group]] -= 1
            heapq.heappush(self.ready, trajectory.group)
        self._start()

    def _place(self, trajectory: Trajectory) -> Engine:
        """verl's router: the engine where the trajectory was, if it is remembered, or the one with the fewest turns."""
        if (engine := self.places.pop(trajectory, None)) is None:
            engine = min(self.engines, key=LOAD)
            engine.members += 1
        self.places[trajectory] = engine
        if len(self.places) > self.order.sticky:
            self.places.popitem(last=False)[1].members -= 1
        return engine
