"""How many trajectories are at work at once."""

import asyncio

from retool_mcore.rollout.live import Live


async def ran(live: Live, count: int, tokens: int) -> tuple[int, list[int]]:
    """Most trajectories at once of `count` that end with `tokens` each, and the order in which they began."""
    most, began = 0, []

    async def one(number: int) -> None:
        nonlocal most
        async with live.trajectory():
            began.append(number)
            most = max(most, live.count)
            await asyncio.sleep(0.001)
            live.ended(tokens)

    await asyncio.gather(*map(one, range(count)))
    assert live.count == 0 and not live.waiting
    return most, began


def test_as_many_begin_as_the_caches_hold():
    # A third of 300 tokens each, before any has ended.
    most, began = asyncio.run(ran(Live(1000, longest=300, window=100), 40, tokens=100))
    assert most == 10 and began == list(range(40))


def test_without_a_bound_all_begin():
    assert asyncio.run(ran(Live(None, longest=300, window=4), 40, tokens=100))[0] == 40


def test_the_bound_follows_the_lengths_seen():
    live = Live(1000, longest=300, window=20)
    asyncio.run(ran(live, 10, tokens=300))
    assert live.bound == 5  # half of the window is still the guess
    asyncio.run(ran(live, 20, tokens=50))
    assert live.bound == 20
    assert Live(10, longest=300, window=1).bound == 1


def test_the_configured_bound_wins():
    assert asyncio.run(ran(Live(1000, longest=300, window=4, most=3), 9, tokens=1))[0] == 3


def test_a_trajectory_that_fails_or_is_given_up_leaves_its_place():
    live = Live(100, longest=300, window=4)  # one at once

    async def held(until: asyncio.Event, fails: bool = False) -> None:
        async with live.trajectory():
            await until.wait()
            if fails:
                raise RuntimeError

    async def run() -> None:
        until = asyncio.Event()
        first, given_up, last = (asyncio.create_task(held(until, fails)) for fails in (True, False, False))
        await asyncio.sleep(0)
        assert live.count == 1 and len(live.waiting) == 2
        given_up.cancel()
        until.set()
        async with asyncio.timeout(5):
            ends = await asyncio.gather(first, given_up, last, return_exceptions=True)
        assert [type(end) for end in ends] == [RuntimeError, asyncio.CancelledError, type(None)]
        assert live.count == 0 and not live.waiting

    asyncio.run(run())
