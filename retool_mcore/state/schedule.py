"""When a step is saved in addition to `train.save_every`, and whether another still fits into the job's time.

Both from the times that this attempt measures. No torch here.
"""

import time
from collections import deque

from retool_mcore.state import heartbeat, stop

SHARE = 0.05  # of the time, which saves by the clock may take at most
RECENT = 5  # steps; the longest of them counts
STEP_MARGIN, SAVE_MARGIN = 1.25, 1.5  # as much longer may the next one take
END_S = 120.0  # for the end of all processes and the way back to the queue


class Schedule:
    """The clock of one attempt's trainer.

    save_minutes: a step is saved once this time has passed since the last save, or since the start; longer where a save
    takes more than SHARE of it. None: never. save_every: the steps between two saves; below 1 nothing is ever due.
    """

    def __init__(self, save_minutes: float | None, save_every: int) -> None:
        self.save_s = None if save_minutes is None or save_every < 1 else 60 * save_minutes
        self.save_every = save_every
        self.saved = time.time()
        self.cost_s = 0.0  # of the longest save
        self.steps: deque[float] = deque(maxlen=RECENT)  # seconds without saves
        self.began: float | None = None
        self.saving_s = 0.0  # of the step that runs

    def begin_step(self, step: int, **facts: int) -> None:
        """Step `step` begins, and the one before has ended. Tells the launcher when the next save comes."""
        now = time.time()
        if self.began is not None:
            self.steps.append(now - self.began - self.saving_s)
        self.began, self.saving_s = now, 0.0
        heartbeat.beat(heartbeat.TRAINER, "prompts", next_save=self.next_save(step), **facts)

    def save_ended(self, seconds: float) -> None:
        self.cost_s, self.saved = max(self.cost_s, seconds), time.time()
        self.saving_s += seconds

    def due(self) -> bool:
        """Whether the clock asks for a save of the step that ends now."""
        return self.save_s is not None and time.time() >= self.saved + self._interval_s()

    def another_fits(self) -> bool:
        """Whether, at the end of a step, another one and its save would end before the job's time is over."""
        left = stop.job_end() - time.time()
        longest = max([*self.steps, time.time() - self.began - self.saving_s])
        needed = STEP_MARGIN * longest + SAVE_MARGIN * (self.cost_s or longest) + END_S
        if left < needed:
            times = f"{left / 60:.1f} minutes are left, another step with its save may take {needed / 60:.1f}"
            print(f"The end of the job's time is near ({times}): stopping here", flush=True)
        return left >= needed

    def next_save(self, step: int) -> float | None:
        """Return the time of the next save in seconds since the epoch, as `step` begins; None while it is not known."""
        times = [] if self.save_s is None else [self.saved + self._interval_s()]
        if self.save_every > 0 and self.steps:
            left = -step % self.save_every + 1  # this step included
            times.append(time.time() + left * sum(self.steps) / len(self.steps))
        return min(times, default=None)

    def _interval_s(self) -> float:
        return max(self.save_s, self.cost_s / SHARE)
