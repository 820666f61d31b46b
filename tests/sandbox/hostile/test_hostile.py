"""Every hostile program at every level: contained, the right status, nothing left behind, the next run unaffected.

Among the fast tests: the quick ones at the strongest level that this machine offers. Marker `hostile`: all others.
"""

import asyncio

import pytest

from retool_mcore.errors import UserError
from tests.support.hostile.hostile_catalogue import CASES
from tests.support.hostile.hostile_runner import LEVELS, Range

STRONGEST = "strongest"


def parameters():
    for level in (STRONGEST, *LEVELS):
        for case in CASES.values():
            quick = level == STRONGEST and not case.slow
            if quick or (level != STRONGEST):
                marks = [] if quick else [pytest.mark.hostile]
                yield pytest.param(level, case, marks=marks, id=f"{level}-{case.name}")


@pytest.fixture(scope="module")
def ranges():
    """Function level -> started Range; None where this machine does not offer the level."""
    started = {}
    with asyncio.Runner() as runner:

        def get(level):
            if level not in started:
                started[level] = runner.run(start(level))
            return runner, started[level]

        yield get
        for opened in {id(r): r for r in started.values() if r is not None}.values():
            runner.run(opened.close())


async def start(level):
    for candidate in LEVELS[::-1] if level == STRONGEST else (level,):
        opened = Range(candidate)
        try:
            await opened.start()
        except UserError:
            await opened.close()
            continue
        return opened
    return None


@pytest.mark.parametrize(("level", "case"), parameters())
def test_program(level, case, ranges):
    runner, opened = ranges(level)
    if opened is None:
        pytest.skip(f"this machine does not offer level {level!r}")
    verdict = runner.run(opened.attempt(case))
    if verdict.skipped:
        pytest.skip("it strikes every process that it sees, and here it would see the host's")
    assert verdict.failures() == []
