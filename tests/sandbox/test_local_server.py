"""The warm server behind the local back-end: many runs, several loops, forks, deaths."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from levels_here import HIDDEN, LEVELS_HERE

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation import descendants
from retool_mcore.sandbox.local import LocalSandbox, launch, sandbox

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def box():
    sandbox = LocalSandbox(timeout_s=60, workers=32, preload=("math",))
    yield sandbox
    asyncio.run(sandbox.close())


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def released(name):
    """A program's beginning: it waits, under a name, until it gets SIGUSR1."""
    return f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [10])\n{name}signal.sigwait([10])\n"


def test_many_runs_at_once_do_not_mix_and_do_not_block_the_loop(box, take_name, named_below):
    async def main():
        await box.run("1")
        runs = [asyncio.create_task(box.run(released(take_name("many")) + str(i))) for i in range(32)]
        # The loop itself looks: if a run blocked it, no other would begin.
        while len(waiting := named_below(box._server.process.pid, "many")) < 32:
            await asyncio.sleep(0.02)
        assert not any(run.done() for run in runs)
        for pid in waiting:
            os.kill(pid, signal.SIGUSR1)
        return await asyncio.gather(*runs)

    assert [result.value for result in asyncio.run(main())] == [str(i) for i in range(32)]


def test_workers_bound_the_runs_at_once(take_name, named_below):
    box = LocalSandbox(workers=2, preload=(), timeout_s=60)

    async def main():
        await box.run("1")
        runs = [asyncio.create_task(box.run(released(take_name("bound")))) for _ in range(5)]
        most = 0
        while not all(run.done() for run in runs):
            waiting = named_below(box._server.process.pid, "bound")
            most = max(most, len(waiting))
            for pid in waiting if most == 2 else ():
                os.kill(pid, signal.SIGUSR1)
            await asyncio.sleep(0.02)
        await box.close()
        return most

    assert asyncio.run(main()) == 2


def test_loops_one_after_another_and_other_threads_share_one_server(box):
    values = [asyncio.run(box.run("1 + 1")).value]
    server = box._server.process.pid
    thread = threading.Thread(target=lambda: values.append(asyncio.run(box.run("2 + 2")).value))
    thread.start()
    thread.join()
    values.append(asyncio.run(box.run("3 + 3")).value)
    assert values == ["2", "4", "6"] and box._server.process.pid == server


def test_a_fork_starts_a_server_of_its_own(box):
    asyncio.run(box.run("1"))
    code = """
import asyncio, os
from retool_mcore.sandbox.local import LocalSandbox, launch, sandbox
box = LocalSandbox(preload=(), timeout_s=60)
assert asyncio.run(box.run('1')).value == '1'
server = box._server.process.pid
child = os.fork()
if child == 0:
    value = asyncio.run(box.run('2')).value
    own = box._server.process.pid
    asyncio.run(box.close())
    os._exit(0 if value == '2' and own != server else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(box.run('3')).value == '3' and box._server.process.pid == server
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=100)


def test_a_dead_server_is_replaced(box):
    asyncio.run(box.run("1"))
    first = box._server.process.pid
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: not alive(first))
    folder = Path(box._server.base_dir)
    assert folder.exists()
    assert asyncio.run(box.run("2")).value == "2"
    assert not folder.exists()


def test_cancelling_kills_the_program(box, take_name, named_below):
    async def main():
        await box.run("1")
        server = box._server.process.pid
        task = asyncio.create_task(box.run(take_name("cancelled") + "import time\ntime.sleep(1000)"))
        while not named_below(server, "cancelled"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return server

    server = asyncio.run(main())
    assert wait_until(lambda: not named_below(server, "cancelled"))


def test_close_ends_the_server_and_what_it_runs():
    async def main():
        box = LocalSandbox(preload=(), timeout_s=60)
        await box.run("1")
        process = box._server.process
        task = asyncio.create_task(box.run("import time\ntime.sleep(1000)"))
        await asyncio.sleep(0.5)
        await box.close()
        return process, await task, (await box.run("7")).value, await box.close()

    process, result, value, _ = asyncio.run(main())
    assert process.returncode is not None
    assert result.status in (Status.KILLED, Status.SANDBOX)
    assert value == "7"  # usable again


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_nothing_outlives_a_parent_that_is_killed(level, take_name, named_below):
    program = take_name("orphan") + "import os, time\nos.fork()\ntime.sleep(1000)"
    code = f"""
import asyncio, os
from retool_mcore.sandbox.local import LocalSandbox, launch, sandbox
async def main():
    box = LocalSandbox(preload=(), timeout_s=600, max_isolation={level!r})
    await box.run('1')
    if os.fork() == 0:
        os.read(os.pipe()[0], 1)  # a copy of the trainer that keeps its sockets open
    print(box._server.process.pid, flush=True)
    await box.run({program!r})
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, process_group=0)
    try:
        server = int(parent.stdout.readline())
        assert wait_until(lambda: len(named_below(server, "orphan")) == 2)
        tree = [server, *descendants(server)]
        parent.kill()
        parent.wait()
        assert wait_until(lambda: not any(alive(pid) for pid in tree))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


def test_the_server_inherits_neither_files_nor_environment(box, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hidden")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    asyncio.run(box.run("1"))
    os.close(descriptor)
    server = Path(f"/proc/{box._server.process.pid}")
    assert str(tmp_path) not in [os.readlink(fd) for fd in (server / "fd").iterdir()]
    assert b"API_TOKEN" not in (server / "environ").read_bytes()


@pytest.mark.skipif(HIDDEN, reason="no level below namespaces starts here")
def test_isolation_that_the_host_lacks_is_refused():
    box = LocalSandbox(preload=(), min_isolation="namespaces", max_isolation="process")
    with pytest.raises(UserError, match="min_isolation"):
        asyncio.run(box.run("1"))


def test_a_module_that_cannot_be_preloaded_is_named():
    with pytest.raises(UserError, match="no_such_module"):
        asyncio.run(LocalSandbox(preload=("no_such_module",)).run("1"))


def test_a_session_goes_on_after_the_servers_end_and_the_policy_reads_that_its_state_is_lost(box):
    async def main():
        await box.run("x = 1", session="kept")
        os.kill(box._server.process.pid, signal.SIGKILL)
        await asyncio.to_thread(box._server.process.wait)
        lost = await box.run("print('on')\ny = 2", session="kept")
        again = await box.run("y", session="kept")
        await box.end_session("kept")
        return lost, again

    lost, again = asyncio.run(main())
    assert lost.status is Status.SUCCESS
    assert lost.observation() == "the session's state was lost; it begins anew with this run\non"
    assert again.observation() == "2"


def test_runs_under_which_the_server_is_killed_are_done_again(box, caplog):
    async def main():
        await box.run("1")
        running = [asyncio.create_task(box.run(f"import time\ntime.sleep(1)\n{i}")) for i in range(4)]
        kept = asyncio.create_task(box.run("import time\ntime.sleep(1)", session="kept"))
        await asyncio.sleep(0.3)
        os.kill(box._server.process.pid, signal.SIGKILL)
        return await asyncio.gather(*running), await kept

    results, kept = asyncio.run(main())
    assert [result.value for result in results] == ["0", "1", "2", "3"]
    assert kept.status is Status.SANDBOX  # its variables are gone
    assert box.stats()["restarts"] == 1 and "SIGKILL" in caplog.text


@pytest.fixture
def killed_at_start(monkeypatch):
    """Function n: the next n servers are killed before their hello."""
    start, left = launch.subprocess.Popen, []

    def started(*args, **options):
        process = start(*args, **options)
        if left:
            left.pop()
            process.kill()
        return process

    monkeypatch.setattr(launch.subprocess, "Popen", started)
    return lambda number: left.extend(range(number))


@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_server_that_is_killed_while_it_starts_is_started_again(box, killed_at_start, caplog, runs_before):
    async def main():
        for _ in range(runs_before):
            await box.run("1")
            os.kill(box._server.process.pid, signal.SIGKILL)
            await asyncio.to_thread(box._server.process.wait)
        killed_at_start(1)
        return await box.run("1 + 1")

    result = asyncio.run(main())
    assert (result.status, result.value) == (Status.SUCCESS, "2"), result.stderr
    assert "the sandbox's server was killed by SIGKILL while it started" in caplog.text


def test_a_server_that_never_lives_to_its_hello_breaks_the_run_and_not_the_job(box, killed_at_start):
    killed_at_start(2)
    result = asyncio.run(box.run("1"))
    assert result.status is Status.SANDBOX and "does not stay alive" in result.stderr
    assert asyncio.run(box.run("1")).status is Status.SUCCESS


def test_a_later_start_that_fails_is_not_the_users_mistake(box, monkeypatch):
    async def main():
        await box.run("1")
        os.kill(box._server.process.pid, signal.SIGKILL)
        await asyncio.to_thread(box._server.process.wait)
        monkeypatch.setattr(launch, "START_TIMEOUT_S", 0.001)
        return await box.run("1")

    assert asyncio.run(main()).status is Status.SANDBOX


def test_closing_under_runs_starts_no_other_server(box):
    async def main():
        await box.run("1")
        # More than begin at once: those that wait in the server get no reply when it closes.
        running = [asyncio.create_task(box.run("import time\ntime.sleep(1000)")) for _ in range(32)]
        await asyncio.sleep(0.01)
        await box.close()
        return await asyncio.gather(*running)

    assert {result.status for result in asyncio.run(main())} <= {Status.KILLED, Status.SANDBOX}
    assert box.stats()["pids"] == [] and box.stats()["restarts"] == 0


def test_a_run_that_ends_the_server_every_time_is_given_up(box, monkeypatch):
    exchange = sandbox._exchange

    async def dying(connection, request):
        os.kill(box._server.process.pid, signal.SIGKILL)
        return await exchange(connection, request)

    monkeypatch.setattr(sandbox, "_exchange", dying)
    result = asyncio.run(box.run("1"))
    assert result.status is Status.SANDBOX and "stay alive" in result.stderr
