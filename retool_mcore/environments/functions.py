"""The functions of the generated repositories: the source of each (reference.py) and a generator of its arguments."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass

from retool_mcore.environments import reference


@dataclass(frozen=True)
class Function:
    """`arguments(rng)` draws a tuple of literals; `source` defines the function `name`."""

    name: str
    source: str
    arguments: Callable[[random.Random], tuple]


def _numbers(rng: random.Random, least: int = 0, most: int = 6) -> list[int]:
    return [rng.randint(-20, 20) for _ in range(rng.randint(least, most))]


def _word(rng: random.Random, least: int = 0, most: int = 8) -> str:
    return "".join(rng.choice("aabbceinost") for _ in range(rng.randint(least, most)))


def _interval(rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, 10)
    return start, start + rng.randint(1, 6)


_ARGUMENTS: dict[Callable, Callable[[random.Random], tuple]] = {
    reference.clamp: lambda rng: (rng.randint(-9, 19), 0, 10),
    reference.running_total: lambda rng: (_numbers(rng, 1),),
    reference.chunks: lambda rng: (_numbers(rng, 1, 7), rng.randint(1, 4)),
    reference.rotate: lambda rng: (_numbers(rng, 0, 6), rng.randint(0, 8)),
    reference.is_leap: lambda rng: (rng.choice([1900, 2000, 2100, 2024, 2023, 1600, 2200, rng.randint(1800, 2200)]),),
    reference.moving_sums: lambda rng: (_numbers(rng, 3, 7), rng.randint(1, 3)),
    reference.merge_sorted: lambda rng: (sorted(_numbers(rng)), sorted(_numbers(rng))),
    reference.find_sorted: lambda rng: (sorted(set(_numbers(rng, 1, 8))), rng.randint(-20, 20)),
    reference.roman: lambda rng: (rng.randint(1, 99),),
    reference.caesar: lambda rng: (_word(rng, 1) + rng.choice(["", " X", "!"]), rng.randint(1, 30)),
    reference.run_lengths: lambda rng: (_word(rng, 1),),
    reference.digital_root: lambda rng: (rng.choice([9, 10, 99, rng.randint(0, 99999)]),),
    reference.overlap: lambda rng: (_interval(rng), _interval(rng)),
    reference.most_common: lambda rng: ([_word(rng, 1, 2) for _ in range(rng.randint(2, 8))], rng.randint(1, 3)),
    reference.least_common_multiple: lambda rng: (rng.randint(1, 30), rng.randint(1, 30)),
    reference.parse_ranges: lambda rng: (",".join(rng.choice(["3", "1-4", "7-7", "10-12", "8"]) for _ in range(3)),),
    reference.balanced: lambda rng: ("".join(rng.choice("(()) a") for _ in range(rng.randint(1, 6))),),
    reference.second_largest: lambda rng: (_numbers(rng, 0, 5),),
}

FUNCTIONS = {
    function.__name__: Function(function.__name__, inspect.getsource(function), arguments)
    for function, arguments in _ARGUMENTS.items()
}
