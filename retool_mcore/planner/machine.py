"""Machines, and the constants of the time model that only a measurement can give."""

from dataclasses import dataclass, field, replace

from retool_mcore.errors import UserError
from retool_mcore.planner.memory import GIB
from retool_mcore.tables import yaml_beside


@dataclass(frozen=True)
class Constants:
    """Measured constants, which are not read from a data sheet.

    benchmarks/planner/predictions.py fits the first three, to three rows of 2 x H200.
    """

    matmul: float = 0.649  # share of the peak that a large bf16 product reaches inside a training step
    attention: float = 0.634  # share of the peak that cuDNN's causal attention reaches, forward and backward
    step_s: float = 0.057  # host work a step (batch, metrics, norms)
    elementwise: float = 0.60  # share of the HBM bandwidth that element-wise kernels reach; guessed
    # Half of that speed is reached when the smallest of a product's local sizes has so many rows or columns; guessed.
    matmul_half: float = 160.0
    # All-reduce bus bandwidth measured over nominal NVLink bandwidth on 4 x H200: 354 of 450 GB/s at 1 GiB.
    nvlink: float = 0.79
    network: float = 0.75  # the same of the network; not measured
    latency_s: float = 20e-6  # of one collective; 31 us for 1 MiB measured on 4 x H200, 3 us of them transfer
    layer_launch_s: float = 60e-6  # least time of a layer's forward: some 30 kernels of 2 us; not measured
    adam: float = 0.70  # share of the HBM bandwidth that the fused Adam reaches; not measured


@dataclass(frozen=True)
class Machine:
    """One GPU, how it is tied to others, and the constants.

    Bandwidths in bytes/s and one direction. NVIDIA's "80 GB" and "141 GB" are GiB.
    """

    name: str
    memory: float  # bytes
    bf16: float  # dense FLOP/s
    hbm: float
    nvlink: float
    network: float  # a GPU's share of the node's adapters
    pcie: float
    gpus_per_node: int = 8
    constants: Constants = field(default_factory=Constants)


_TABLES = yaml_beside(__file__)
_MEASURED = {name: Constants(**others) for name, others in _TABLES["constants"].items()}
MACHINES = {
    name: Machine(name, found.pop("gib") * GIB, constants=_MEASURED.get(name, Constants()), **found)
    for name, found in _TABLES["machines"].items()
}
GPUS = {name.partition("-")[0]: machine for name, machine in MACHINES.items()}


def find_machine(gpu: str | None, memory: float) -> Machine:
    """The GPU that is named, or the first whose memory is nearest, with `memory` GiB."""
    if not 1 <= memory <= 1024:
        raise UserError(f"--gpu-memory {memory:g}: expected GiB of one GPU, as in 80.")
    if gpu is None:
        card = min(GPUS.values(), key=lambda machine: abs(machine.memory / GIB - memory))
    elif gpu.upper() in GPUS:
        card = GPUS[gpu.upper()]
    else:
        raise UserError(f"--gpu {gpu}: expected one of {', '.join(GPUS)}.")
    return replace(card, name=f"{card.name.partition('-')[0]} with {memory:g} GiB", memory=memory * GIB)
