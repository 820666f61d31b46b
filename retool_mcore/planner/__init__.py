"""Which parallel layout a model should be trained with: memory and time predicted from shapes alone, no GPU, no torch.

shape.py and flops.py are arithmetic of the model, memory.py and time.py of a layout on a machine (machine.py),
parallel.py refuses what an engine would, search.py tries the layouts, table.py prints and writes them. run.py
reads the layout of a run, changes.py finds what would gain most, verdict.py says it. packing.py puts sequences into
micro-batches, derived.py sizes everything except the model.
"""

from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import MACHINES, Machine
from retool_mcore.planner.shape import SHAPES, Shape

__all__ = ["MACHINES", "SHAPES", "Batch", "Layout", "Machine", "Shape"]
