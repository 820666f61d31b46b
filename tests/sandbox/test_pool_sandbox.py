"""The pool against services in this process: choosing, refusals, sessions that move, hosts that come and go."""

import asyncio
import os
import socket
import threading
from collections import Counter

import pytest
from aiohttp import web
from services import Gate, served, until

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.service import hosts, pool
from retool_mcore.sandbox.service.hosts import Fleet, HostList
from retool_mcore.sandbox.service.pool import PoolSandbox


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hosts, "CHECK_S", 0.1)
    monkeypatch.setattr(hosts, "CHECK_TIMEOUT_S", 10.0)
    monkeypatch.setattr(hosts, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(hosts, "RELOAD_S", 0.05)
    monkeypatch.setattr(pool, "retry_after_s", lambda text: 0.02)


def test_runs_spread_over_hosts_by_their_load():
    async def main():
        gates = Gate(is_open=False), Gate(is_open=False)
        async with served(gates[0]) as (_, first), served(gates[1]) as (_, second):
            box = PoolSandbox(hosts=[first, second])
            runs = [asyncio.create_task(box.run(str(i))) for i in range(20)]
            await until(lambda: sum(len(gate.order) for gate in gates) == 8)  # two hosts of four slots
            balance = [len(gate.order) for gate in gates]
            for gate in gates:
                gate.open.set()
            results = await asyncio.gather(*runs)
            return balance, [result.stdout for result in results], box.stats()

    balance, texts, stats = asyncio.run(main())
    assert balance == [4, 4] and texts == [f"{i}\n" for i in range(20)]
    assert stats["runs"] == 20 and stats["retries"] == stats["lost"] == 0 and stats["hosts_up"] == 2


def test_a_full_service_is_asked_again_until_it_has_room():
    async def main():
        gate = Gate(is_open=False)
        async with served(gate, slots=1, max_waiting=0) as (_, url):
            box = PoolSandbox(hosts=[url])
            runs = [asyncio.create_task(box.run(str(i))) for i in range(5)]
            await until(lambda: box.stats()["busy"] >= 8)
            gate.open.set()
            return await asyncio.gather(*runs), box.stats()

    results, stats = asyncio.run(main())
    assert all(result.status is Status.SUCCESS for result in results)
    assert stats["retries"] >= 8 and stats["unhealthy"] == stats["lost"] == 0


def test_a_draining_host_is_left_for_another():
    async def main():
        gates = Gate(), Gate()
        async with served(gates[0]) as (going, first), served(gates[1]) as (_, second):
            await going.drain()
            box = PoolSandbox(hosts=[first, second])
            results = await asyncio.gather(*[box.run(str(i)) for i in range(10)])
            return results, gates[0].order, box.stats()

    results, there, stats = asyncio.run(main())
    assert all(result.status is Status.SUCCESS for result in results) and there == []
    assert stats["failovers"] == stats["retries"] > 0 and stats["unhealthy"] == 0


def test_a_host_that_hangs_is_found_out_and_left(monkeypatch):
    monkeypatch.setattr(hosts, "CHECK_TIMEOUT_S", 0.5)

    async def main():
        hung = asyncio.Event()

        async def hang(request):
            await hung.wait()
            return web.Response()

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", hang)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with served(Gate()) as (_, second):
            box = PoolSandbox(hosts=[url, second])
            results = await asyncio.gather(*[box.run(str(i)) for i in range(10)])
            hung.set()
            await runner.cleanup()
            return results, box.stats()

    results, stats = asyncio.run(main())
    assert all(result.status is Status.SUCCESS for result in results)
    assert stats["unhealthy"] >= 1 and stats["failovers"] >= 1 and stats["lost"] == 0


def test_a_sandbox_error_of_one_host_is_tried_on_another():
    class Broken(Gate):
        async def run(self, code, **options):
            return Result(Status.SANDBOX, "", "no room\n", None, 0.0)

    async def main(*sandboxes):
        async with served(sandboxes[0]) as (_, first), served(sandboxes[1]) as (_, second):
            return await asyncio.gather(*[PoolSandbox(hosts=[first, second]).run(str(i)) for i in range(8)])

    assert {result.status for result in asyncio.run(main(Broken(), Gate()))} == {Status.SUCCESS}
    lost = asyncio.run(main(Broken(), Broken()))
    assert {(result.status, result.stderr) for result in lost} == {(Status.SANDBOX, "no room\n")}


def test_an_outage_is_waited_for_once(monkeypatch):
    """Runs that come when no host has answered for the pool's patience ask once more, and give up: or they ran."""
    monkeypatch.setattr(pool, "ASKED_AGAIN_S", 1.0)
    monkeypatch.setattr(hosts, "LAST_RETRY_S", 0.02)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    async def main():
        box = PoolSandbox(hosts=[f"http://127.0.0.1:{port}"], patience_s=1000.0)
        waiting = asyncio.create_task(box.run("first"))
        fleet = box._states.get().fleet
        await until(lambda: fleet.silent_s() > 0)
        fleet._silent_since -= 1000.0
        async with asyncio.timeout(60):
            lost = await asyncio.gather(waiting, *[box.run(str(i)) for i in range(3)])
        async with served(Gate(), port=port):
            found = await asyncio.gather(*[box.run(str(i)) for i in range(3)])
            return lost, found, fleet.silent_s()

    lost, found, silent_s = asyncio.run(main())
    assert {result.status for result in lost} == {Status.SANDBOX} and "within 1000 s" in lost[0].stderr
    assert {result.status for result in found} == {Status.SUCCESS} and silent_s == 0


def test_what_every_host_would_refuse_is_not_asked_again():
    async def main():
        async with served(Gate()) as (_, url):
            box = PoolSandbox(hosts=[url], memory_mb=10**6)
            return await box.run("1"), box.stats()

    result, stats = asyncio.run(main())
    assert result.status is Status.SANDBOX and "at most 1024 MB" in result.stderr and stats["retries"] == 0


def test_a_session_stays_on_its_host_and_is_made_again_where_that_dies():
    async def main():
        gates = [Gate(), Gate(), Gate()]
        async with served(gates[1]) as (_, second), served(gates[2]) as (_, third):
            async with served(gates[0]) as (_, first):
                box = PoolSandbox(hosts=[first])
                await box.run("a", session="s" * 16)
                await box.run("b", session="s" * 16)
                box._states.get().fleet._take((first, second, third))
                await box.run("c", session="s" * 16)
                before = [list(gate.order) for gate in gates]
            result = await box.run("d", session="s" * 16)
            await box.end_session("s" * 16)
            return before, result.stdout, [(gate.order, gate.ended) for gate in gates[1:]], box.stats()

    before, stdout, after, stats = asyncio.run(main())
    assert before == [["a", "b", "c"], [], []] and stdout == "d\n"
    assert (
        sorted(after) == [([], []), (["a", "b", "c", "d"], ["a", "b", "c", "d", "s" * 16])] and stats["replayed"] == 3
    )


def test_a_session_is_made_again_where_the_service_was_started_anew():
    async def main():
        old, new = Gate(), Gate()
        async with served(old) as (_, url):
            box = PoolSandbox(hosts=[url])
            await box.run("a", session="s" * 16)
        await box.close()
        async with served(new, port=int(url.rpartition(":")[2])):
            await box.run("b", session="s" * 16)
            return new.order, box.stats()

    order, stats = asyncio.run(main())
    assert order == ["a", "b"] and stats["replayed"] == 1


def test_hosts_come_and_go_with_the_files_of_a_folder(tmp_path):
    async def main():
        gates = Gate(), Gate()
        async with served(gates[0]) as (_, first), served(gates[1]) as (_, second):
            box = PoolSandbox(hosts_from=tmp_path)
            waiting = asyncio.create_task(box.run("before any host"))
            await asyncio.sleep(0.05)
            (tmp_path / ".part").write_text("half an addre")
            (tmp_path / "one").write_text(f"# a comment\n{first}\n")
            await waiting
            gates[0].open.clear()
            held = asyncio.create_task(box.run("held"))
            await until(lambda: "held" in gates[0].order)
            (tmp_path / "two").write_text(second)
            (tmp_path / "one").unlink()
            fleet = box._states.get().fleet
            await until(lambda: set(fleet.hosts) == {second})
            gates[0].open.set()
            await asyncio.gather(held, *[box.run("after") for _ in range(5)])
            return gates[0].order, gates[1].order

    first, second = asyncio.run(main())
    assert first == ["before any host", "held"] and second == ["after"] * 5


def test_addresses_are_read_once_each_and_a_wrong_one_is_named(tmp_path):
    (tmp_path / "list").write_text("http://b:1/run_code\n\nhttp://a:1/  # twice\nhttp://a:1\n")
    assert HostList(["http://c:1"], tmp_path / "list").read() == ("http://c:1", "http://b:1", "http://a:1")
    (tmp_path / "list").write_text("b:1\n")
    with pytest.raises(UserError, match="'b:1'"):
        HostList(path=tmp_path).read()


def test_a_list_that_cannot_be_read_leaves_the_known_hosts(tmp_path):
    async def main():
        (tmp_path / "list").write_text("http://a:1\n")
        fleet = Fleet(HostList(path=tmp_path), "/health", Counter())
        (tmp_path / "list").write_text("not an address\n")
        fleet._take(fleet._read())
        return list(fleet.hosts)

    assert asyncio.run(main()) == ["http://a:1"]


def test_loops_one_after_another_other_threads_and_forks_share_a_pool():
    ready, url, stop = threading.Event(), [], []

    def serve():
        async def main():
            stop.append((asyncio.get_running_loop(), asyncio.Event()))
            async with served(Gate()) as (_, address):
                url.append(address)
                ready.set()
                await stop[0][1].wait()

        asyncio.run(main())

    server = threading.Thread(target=serve)
    server.start()
    ready.wait()
    try:
        box = PoolSandbox(hosts=url)
        texts = [asyncio.run(box.run("a")).stdout, asyncio.run(box.run("b")).stdout]
        thread = threading.Thread(target=lambda: texts.append(asyncio.run(box.run("c")).stdout))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            os._exit(0 if asyncio.run(box.run("d")).stdout == "d\n" else 1)
        code = os.waitpid(child, 0)[1]
    finally:
        stop[0][0].call_soon_threadsafe(stop[0][1].set)
        server.join()
    assert texts == ["a\n", "b\n", "c\n"] and code == 0 and box.stats()["runs"] == 3
