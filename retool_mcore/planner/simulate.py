"""Whole steps of a run in events, over the planner's costs: `retool simulate`.

The trainer's phases take what the planner says; generation is played (serving.py): trajectories with turns and tools
through engines whose caches fill. The order is that of verl's trainers: prompts of so many batches ahead are at work;
the trainer waits for a mini-batch of whole groups, and as long as one is unfinished that would become too old; after
the step's updates it pushes the weights, at which unfinished trajectories wait and are then read in anew.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from retool_mcore.planner.rollout import PUSH_S, Costs
from retool_mcore.planner.search import Plan, Problem
from retool_mcore.planner.serving import Clock, Engine, Trajectory
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
    bound: int = 0  # updates of the weights that may lie between a trajectory's first token and its training
    colocated: bool = True  # on the same GPUs
    live: int | None = None  # trajectories at work at once; None: by the caches, as `retool rl` does
    sticky: int = 10_000  # trajectories whose engine verl's router remembers (workers/rollout/router.py)


@dataclass
class Step:
    """Seconds of a step, and what it was trained on."""

    waited: float = 0.0  # the trainer, for trajectories
    trained: float = 0.0
    pushed: float = 0.0
    tokens: float = 0.0
    staleness: list[int] = field(default_factory=list)  # of each trajectory
    spent: Counter[str] = field(default_factory=Counter)  # by all engines in this step: Engine.spent

    @property
    def seconds(self) -> float:
        return self.waited + self.trained + self.pushed


class Simulation:
    """engines: replicas; drawn: groups of trajectories, without end."""

    def __init__(self, problem: Problem, plan: Plan, order: Order, engines: int, drawn: Iterator[list[Trajectory]]):
        self.order, self.drawn, self.clock = order, drawn, Clock()
        engine, sequences = plan.rollout, len(problem.batch.lengths)
        given = Costs.of(problem.shape, problem.machine, engine.tp), engine.cache_tokens, engine.max_num_seqs
        self.engines = [Engine(self.clock, *given) for _ in range(engines)]
        self.live = Live(engine.cache_tokens * engines, problem.batch.longest, sequences, order.live)
        self.batch = sequences // order.group  # groups
        self.queue: deque[Trajectory] = deque()
        self.tools: deque[tuple[float, Trajectory]] = deque()
        self.places: OrderedDict[Trajectory, Engine] = OrderedDict()  # the router's memory
        self.groups: list[list[Trajectory]] = []  # by number, those of each that have finished
        self.unfinished: dict[int, int] = {}  # by number, oldest first: the step in which they were begun
        self.ready: list[int] = []  # numbers of whole groups, the oldest first
        self.at_work = self.programs = self.version = 0

    def step(self) -> Step:
        """Plays one step of the trainer."""
        order, found, before = self.order, Step(), self._spent()
        while len(self.groups) < int(self.batch * (self.version + 1 + order.ahead)):
            self._issue(next(self.drawn))
        self._start()
        for _ in range(order.updates):
            found.waited += self.clock.run(self._enough)
            for number in [heapq.heappop(self.ready) for _ in range(self.batch // order.updates)]:
                found.tokens += sum(trajectory.tokens for trajectory in self.groups[number])
                found.staleness += [self.version - trajectory.version for trajectory in self.groups[number]]
            if order.colocated:
                self._each(Engine.hold)
            found.trained += self.clock.run(seconds=order.train_s / order.updates)
        self._each(Engine.hold)
        found.pushed = self.clock.run(seconds=order.push_s)
        self.version += 1
        self._each(Engine.resume)
        found.spent = self._spent() - before
        return found

    def _enough(self) -> bool:
        """A mini-batch is whole, and no group that would become too old is unfinished."""
        old = next(iter(self.unfinished.values()), self.version + 1) <= self.version - self.order.bound
        return len(self.ready) >= self.batch // self.order.updates and not old

    def _each(self, act) -> None:
        for engine in self.engines:
            act(engine)

    def _spent(self) -> Counter[str]:
        return sum((engine.spent for engine in self.engines), Counter())

    def _issue(self, group: list[Trajectory]) -> None:
        for trajectory in group:
            trajectory.group, trajectory.process = len(self.groups), self._play(trajectory)
        self.unfinished[len(self.groups)] = self.version
        self.groups.append([])
        self.queue.extend(group)

    def _start(self) -> None:
        while self.queue and self.at_work < self.live.bound:
            self.at_work += 1
            self.queue.popleft().go_on()

    def _play(self, trajectory: Trajectory) -> Generator[None]:
        trajectory.version = self.version
        for number, (given, sampled) in enumerate(trajectory.turns):
            self._place(trajectory).submit(trajectory, given, sampled)
            yield
            if number < len(trajectory.waits):
                self.tools.append((trajectory.waits[number], trajectory))
                self._begin_programs()
                yield
        self._place(trajectory).members -= 1
        del self.places[trajectory]
        self.at_work -= 1
        self.live.ended(trajectory.tokens)
        group = self.groups[trajectory.group]
        group.append(trajectory)
        if len(group) == self.order.group:
            del self.unfinished[trajectory.group]
            heapq.heappush(self.ready, trajectory.group)
        self._start()

    def _place(self, trajectory: Trajectory) -> Engine:
        """verl's router: the trajectory's engine, where that is remembered, else the one with the fewest turns."""
        if (found := self.places.pop(trajectory, None)) is None:
            found = min(self.engines, key=LOAD)
            found.members += 1
        self.places[trajectory] = found
        if len(self.places) > self.order.sticky:
            self.places.popitem(last=False)[1].members -= 1
        return found

    def _begin_programs(self) -> None:
        while self.tools and self.programs < self.order.slots:
            seconds, trajectory = self.tools.popleft()
            self.programs += 1
            self.clock.after(seconds, lambda trajectory=trajectory: self._end_program(trajectory))

    def _end_program(self, trajectory: Trajectory) -> None:
        self.programs -= 1
        self._begin_programs()
        trajectory.go_on()
