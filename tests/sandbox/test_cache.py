import asyncio

import pytest

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.cache import CachedSandbox, is_deterministic


class Counting:
    def __init__(self, status=Status.SUCCESS, stdout="out\n"):
        self.runs, self.status, self.stdout = [], status, stdout

    async def run(self, code, **options):
        self.runs.append((code, options))
        return Result(self.status, self.stdout, "", str(len(self.runs)), 0.5)

    def stats(self):
        return {"runs": len(self.runs)}


def run(sandbox, *programs, **options):
    async def main():
        return [await sandbox.run(code, **options) for code in programs]

    return asyncio.run(main())


@pytest.mark.parametrize(
    "code",
    [
        "print(1 + 1)",
        "```python\nx = 1\n```",
        "from sympy import *\nx = symbols('x')\nsolve(x**2 - 1)",
        "import numpy as np\nnp.linalg.inv(np.eye(3)).sum()",
        "from math import comb\nfrom collections import Counter\nCounter(comb(5, k) for k in range(6))",
        "from itertools import permutations as p\nd = {}\nd.update(a=1)\nprint(sorted(p([1, 2, 3])), d)",
        "class A:\n    def __init__(self):\n        super().__init__()\nif __name__ == '__main__':\n    print(1)",
        "1 / 0",
        "import math\nmath.cos(1.0)",
    ],
)
def test_programs_that_are_surely_deterministic(code):
    assert is_deterministic(code)


@pytest.mark.parametrize(
    "code",
    [
        "import random\nrandom.random()",
        "import time\ntime.time()",
        "import os",
        "import sys",
        "from . import x",
        "import some_module",
        "import os.path as math",
        "input()",
        "open('/proc/self/stat').read()",
        "id(1)",
        "hash('a')",
        "eval('1')",
        "__import__('os')",
        "getattr(math, 'x')",
        "().__class__.__bases__",
        "import numpy as np\nnp.random.rand()",
        "from numpy import random",
        "import numpy.random",
        "from numpy.random import default_rng as d\nd()",
        "import numpy as np\nnp.empty(3)",
        "from numpy import empty as zeros",
        "import numpy as np\nnp.fromfile('x')",
        "from sympy import randprime",
        "from sympy import *\nrandprime(1, 9)",
        "import sympy\nsympy.sympify('__import__(\"os\")')",
        "import statistics\nstatistics.sys",
        "import collections\ncollections._sys",
        "'{0.__class__}'.format(1)",
        "import scipy.stats as s\ns.norm.rvs()",
        "def (",
        "async def f():\n    pass",
    ],
)
def test_programs_that_may_differ(code):
    assert not is_deterministic(code)


def test_a_repeated_program_runs_once():
    inner = Counting()
    box = CachedSandbox(inner, 1)
    results = run(box, "1", "2", "1", "1")
    assert [result.value for result in results] == ["1", "2", "1", "1"] and len(inner.runs) == 2
    stats = box.stats()
    assert (stats["cache_hits"], stats["cache_misses"], stats["cache_hit_rate"], stats["runs"]) == (2, 2, 0.5, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"timeout_s": 2.0},
        {"memory_mb": 7},
        {"stdin": "b"},
        {"files": {"a": b"2"}},
        {"files": {"b": b"1"}},
        {"fetch_files": ["x"]},
    ],
)
def test_other_limits_input_or_files_are_another_run(other):
    inner = Counting()
    box = CachedSandbox(inner, 1)
    same = {"timeout_s": 1.0, "memory_mb": 5, "stdin": "a", "files": {"a": b"1"}}
    run(box, "1", **same)
    run(box, "1", **same)
    assert len(inner.runs) == 1
    run(box, "1", **(same | other))
    assert len(inner.runs) == 2 and inner.runs[1][1] == same | other


@pytest.mark.parametrize("status", [*Status])
def test_only_endings_of_the_programs_own_are_kept(status):
    inner = Counting(status)
    run(CachedSandbox(inner, 1), "1", "1")
    assert len(inner.runs) == (1 if status in (Status.SUCCESS, Status.ERROR) else 2)


def test_sessions_random_programs_and_addresses_are_not_kept():
    inner = Counting()
    box = CachedSandbox(inner, 1)
    run(box, "1", "1", session="s")
    run(box, "import random", "import random")
    assert len(inner.runs) == 4 and box.stats()["cache_uncacheable"] == 4
    assert inner.runs[0][1] == {"session": "s"} and inner.runs[2][1] == {}
    inner = Counting(stdout="<A object at 0x7f00>\n")
    run(CachedSandbox(inner, 1), "1", "1")
    assert len(inner.runs) == 2


def test_the_longest_unused_goes_first_when_room_is_short():
    inner = Counting(stdout="x" * 100_000)
    box = CachedSandbox(inner, 0.25)  # room for two
    run(box, "1", "2", "1", "3")  # 2 goes
    assert box.stats()["cache_bytes"] < 0.25 * 2**20
    run(box, "1", "3")
    assert len(inner.runs) == 3
    run(box, "2")
    assert len(inner.runs) == 4
    inner = Counting(stdout="x" * 1_000_000)
    box = CachedSandbox(inner, 0.25)  # room for none
    run(box, "1", "1")
    assert len(inner.runs) == 2 and box.stats()["cache_bytes"] == 0
