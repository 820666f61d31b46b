"""One call for what a layout needs: peak memory and seconds of a training step."""

from collections.abc import Sequence
from dataclasses import dataclass

from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import Memory, memory
from retool_mcore.planner.shape import Shape
from retool_mcore.planner.time import Time, seconds


@dataclass(frozen=True)
class Prediction:
    """`memory_bytes` is to be compared with torch.cuda.max_memory_allocated, `step_seconds` with one optimizer step."""

    memory_bytes: float
    step_seconds: float
    memory: Memory
    time: Time


def predict(shape: Shape, layout: Layout, batch: Batch | Sequence[int], machine: Machine) -> Prediction:
    """The peak of the fullest rank and the time of one step: forward, backward and optimizer over the whole batch.

    `batch`: the lengths in tokens of all sequences of the step, over all data-parallel ranks, or a Batch. Raises
    UserError for a layout that does not divide the model, and for a sequence that no micro-batch can take.
    """
    batch = Batch.of(batch)
    held, took = memory(shape, layout, batch), seconds(shape, layout, batch, machine)
    return Prediction(held.peak, took.step, held, took)
