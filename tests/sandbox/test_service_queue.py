import asyncio
from types import SimpleNamespace

import pytest

from retool_mcore.sandbox import concurrency
from retool_mcore.sandbox.concurrency import FairQueue, QueueFull
from retool_mcore.sandbox.service.queue import Runs


async def hold(queue, key, name, started, ends):
    async with queue.slot(key):
        started.append(name)
        await ends[name].wait()


async def start_all(queue, runs):
    """Tasks that ask in this order, the names of those that got a slot, and the events that end them."""
    started, ends = [], {name: asyncio.Event() for _, name in runs}
    tasks = []
    for key, name in runs:
        tasks.append(asyncio.create_task(hold(queue, key, name, started, ends)))
        await asyncio.sleep(0)
    return tasks, started, ends


@pytest.fixture
def clock(monkeypatch):
    """Time that stands still until `clock.now` is set."""
    still = SimpleNamespace(now=0.0)
    still.monotonic = lambda: still.now
    monkeypatch.setattr(concurrency, "time", still)
    return still


def test_a_flood_of_one_key_delays_another_by_one_run(clock):
    async def main():
        queue = FairQueue(1)
        runs = [("flood", f"f{i}") for i in range(100)] + [("b", "b0"), ("c", "c0"), ("b", "b1")]
        tasks, started, ends = await start_all(queue, runs)
        assert (queue.running, queue.waiting) == (1, 102)
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks)
        assert (queue.running, queue.waiting) == (0, 0)
        return started

    started = asyncio.run(main())
    assert started[:7] == ["f0", "b0", "c0", "f1", "b1", "f2", "f3"]
    assert len(started) == 103 and started[7:] == [f"f{i}" for i in range(4, 100)]


def test_long_runs_of_one_key_wait_behind_short_ones_but_not_for_ever(clock):
    async def main():
        queue = FairQueue(1)
        runs = [("long", "l0"), ("long", "l1"), ("long", "l2"), ("short", "s0"), ("short", "s1"), ("late", "z")]
        tasks, started, ends = await start_all(queue, runs[:5])
        clock.now = 2.0
        ends["l0"].set()  # has taken two seconds
        ends["s0"].set()
        ends["s1"].set()
        await asyncio.gather(tasks[0], *tasks[3:])
        assert started[:3] == ["l0", "s0", "s1"]
        clock.now = 8.5
        tasks.append(asyncio.create_task(hold(queue, "late", "z", started, {"z": asyncio.Event()})))
        await asyncio.sleep(0)
        ends["l1"].set()
        await tasks[1]
        await asyncio.sleep(0)
        # l1 was passed for four times what l0 had taken; now it is l2 that z passes.
        order = list(started)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(main()) == ["l0", "s0", "s1", "l1", "z"]


def test_slots_bound_what_runs_and_max_waiting_what_waits():
    async def main():
        queue = FairQueue(2, max_waiting=3)
        tasks, started, ends = await start_all(queue, [("a", str(i)) for i in range(5)])
        assert started == ["0", "1"] and queue.waiting == 3
        with pytest.raises(QueueFull):
            await queue.acquire("b")
        ends["0"].set()
        await tasks[0]
        await asyncio.sleep(0)
        assert started == ["0", "1", "2"] and queue.waiting == 2
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks)
        return queue.running, queue.waiting

    assert asyncio.run(main()) == (0, 0)


@pytest.mark.parametrize("in_the_moment_of_its_turn", [False, True])
def test_a_cancelled_wait_loses_no_slot(in_the_moment_of_its_turn):
    async def main():
        queue = FairQueue(1)
        tasks, started, ends = await start_all(queue, [("a", "0"), ("b", "1"), ("c", "2")])
        if in_the_moment_of_its_turn:
            ends["0"].set()
            await asyncio.sleep(0)  # 0 hands its slot to 1, which has not yet run on
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        for end in ends.values():
            end.set()
        await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 10)
        return started, queue.running, queue.waiting

    started, running, waiting = asyncio.run(main())
    assert started in (["0", "2"], ["0", "1", "2"]) and (running, waiting) == (0, 0)


def test_a_repeated_id_joins_the_run_or_gets_its_reply_again():
    async def main():
        runs, calls, go = Runs(), [], asyncio.Event()

        async def make():
            calls.append(1)
            await go.wait()
            return "reply", True

        first = asyncio.create_task(runs.reply("id", make))
        second = asyncio.create_task(runs.reply("id", make))
        await asyncio.sleep(0.01)
        first.cancel()  # its connection broke; the run goes on for the second
        go.set()
        return await second, await runs.reply("id", make), len(calls), runs.joined, runs.active

    assert asyncio.run(main()) == ("reply", "reply", 1, 2, 0)


def test_what_must_not_be_repeated_is_run_again():
    async def main():
        runs, calls = Runs(remembered_bytes=300), []

        async def make(may_repeat):
            calls.append(1)
            return "x" * 100, may_repeat

        for _ in range(2):
            await runs.reply("bad", lambda: make(False))
        for name in "abcd":  # more than there is room for: the oldest goes
            await runs.reply(name, lambda: make(True))
        return len(calls), [runs.knows(name) for name in "abcd"]

    assert asyncio.run(main()) == (6, [False, False, True, True])


@pytest.mark.parametrize("request_id", [None, "id"])
def test_a_run_that_nobody_waits_for_is_stopped(request_id):
    async def main():
        runs, stopped = Runs(orphan_s=0.05), asyncio.Event()

        async def make():
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                stopped.set()
                raise

        task = asyncio.create_task(runs.reply(request_id, make))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait_for(stopped.wait(), 30)
        await asyncio.sleep(0)
        return runs.active

    assert asyncio.run(main()) == 0
