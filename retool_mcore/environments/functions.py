"""The functions of the generated repositories: reference source (functions.yaml), a generator of arguments for each."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from retool_mcore.tables import yaml_beside


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


_ARGUMENTS: dict[str, Callable[[random.Random], tuple]] = {
    "clamp": lambda rng: (rng.randint(-9, 19), 0, 10),
    "running_total": lambda rng: (_numbers(rng, 1),),
    "chunks": lambda rng: (_numbers(rng, 1, 7), rng.randint(1, 4)),
    "rotate": lambda rng: (_numbers(rng, 0, 6), rng.randint(0, 8)),
    "is_leap": lambda rng: (rng.choice([1900, 2000, 2100, 2024, 2023, 1600, 2200, rng.randint(1800, 2200)]),),
    "moving_sums": lambda rng: (_numbers(rng, 3, 7), rng.randint(1, 3)),
    "merge_sorted": lambda rng: (sorted(_numbers(rng)), sorted(_numbers(rng))),
    "find_sorted": lambda rng: (sorted(set(_numbers(rng, 1, 8))), rng.randint(-20, 20)),
    "roman": lambda rng: (rng.randint(1, 99),),
    "caesar": lambda rng: (_word(rng, 1) + rng.choice(["", " X", "!"]), rng.randint(1, 30)),
    "run_lengths": lambda rng: (_word(rng, 1),),
    "digital_root": lambda rng: (rng.choice([9, 10, 99, rng.randint(0, 99999)]),),
    "overlap": lambda rng: (_interval(rng), _interval(rng)),
    "most_common": lambda rng: ([_word(rng, 1, 2) for _ in range(rng.randint(2, 8))], rng.randint(1, 3)),
    "least_common_multiple": lambda rng: (rng.randint(1, 30), rng.randint(1, 30)),
    "parse_ranges": lambda rng: (",".join(rng.choice(["3", "1-4", "7-7", "10-12", "8"]) for _ in range(3)),),
    "balanced": lambda rng: ("".join(rng.choice("(()) a") for _ in range(rng.randint(1, 6))),),
    "second_largest": lambda rng: (_numbers(rng, 0, 5),),
}

FUNCTIONS = {name: Function(name, source, _ARGUMENTS[name]) for name, source in yaml_beside(__file__).items()}
