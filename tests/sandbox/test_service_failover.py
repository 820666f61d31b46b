"""kill -9 of services, each a process of its own, under load: no run is lost, the counters say what was retried."""

import asyncio
import signal

import pytest
from services import end_process, start_process, until, url_of

from retool_mcore.files import shown
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.service.pool import PoolSandbox

CLIENTS = 12
# Long enough for runs to be under way whenever the kill comes.
PROGRAM = "import time\ntime.sleep(0.1)\n{client} * 1000 + {turn}"


async def load(box, turns, done):
    """Clients that each run one program after another; {(client, turn): result}"""

    async def client(number):
        for turn in range(turns):
            done[number, turn] = await box.run(PROGRAM.format(client=number, turn=turn), timeout_s=50)

    await asyncio.gather(*[client(number) for number in range(CLIENTS)])


def check(done, turns):
    assert len(done) == CLIENTS * turns
    wrong = {place: result for place, result in done.items() if result.value != str(place[0] * 1000 + place[1])}
    assert wrong == {}, "lost or mixed up"


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        end_process(process)


def test_kill_of_one_of_two_hosts_loses_nothing(processes, tmp_path):
    processes += [start_process(register=tmp_path) for _ in range(2)]
    urls = {url_of(process) for process in processes}
    assert {shown(file.read_text().strip()) for file in tmp_path.iterdir()} == urls
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}, "the token is in it"

    async def main():
        box, done = PoolSandbox(hosts_from=tmp_path), {}
        task = asyncio.create_task(load(box, 6, done))
        await until(lambda: task.done() or len(done) > 10)
        processes[0].kill()
        await task
        return done, box.stats()

    done, stats = asyncio.run(main())
    check(done, 6)
    assert stats["runs"] == len(done) and stats["lost"] == 0 and stats["unhealthy"] == 1
    assert stats["failovers"] >= 1 and stats["retries"] >= stats["failovers"] and stats["hosts_up"] == 1


def test_a_service_that_is_killed_and_started_again_loses_nothing(processes):
    process = start_process()
    processes.append(process)
    url = url_of(process)

    async def main():
        box, done = PoolSandbox(hosts=[url]), {}
        task = asyncio.create_task(load(box, 4, done))
        await until(lambda: task.done() or len(done) > 10)
        process.kill()
        process.wait()
        processes.append(start_process(port=int(url.rpartition(":")[2])))
        same = await asyncio.to_thread(url_of, processes[-1])
        await task
        return done, box.stats(), same

    done, stats, same = asyncio.run(main())
    check(done, 4)
    assert same == url and stats["lost"] == 0 and stats["unhealthy"] >= 1 and stats["failovers"] == 0
    assert stats["retries"] >= 1 and stats["hosts_up"] == 1


def test_sigterm_finishes_what_runs_and_takes_the_address_away(processes, tmp_path):
    process = start_process(register=tmp_path)
    processes.append(process)
    url = url_of(process)
    [with_token] = [file.read_text().strip() for file in tmp_path.iterdir()]
    assert shown(with_token) == url != with_token

    async def main():
        box = PoolSandbox(hosts=[with_token])
        run = asyncio.create_task(box.run("import time\ntime.sleep(1)\n'ended'", timeout_s=50))
        while (await box.health())["running"] == 0:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        return await run, box.stats()

    result, stats = asyncio.run(main())
    assert (result.status, result.value) == (Status.SUCCESS, "'ended'") and stats["retries"] == 0
    assert process.wait(timeout=60) == 0 and list(tmp_path.iterdir()) == []
    assert "draining, 1 runs to finish" in process.stdout.read()
