"""Every test that is about the workers starts a pool of its own and asks it directly: nothing here depends on which
path `equivalent` takes, on what another test has imported, or on how fast the machine is."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cachetools import LRUCache

from retool_mcore.rewards import equivalence
from retool_mcore.rewards.equivalence import Grader
from retool_mcore.rewards.grader import pool
from retool_mcore.rewards.math import score

# Long enough for any comparison on any machine: a test that is not about the time-out never meets it.
PATIENT_S = 60.0

# The real zygote and workers around a comparison that does what its input says, without importing math-verify.
SCRIPTED_BOOT = """
import os, sys, time, types
sys.path[:] = sys.argv[4:]
def compare(answer, truth):
    if answer == "hang":
        time.sleep(1000)
    if answer == "die":
        os._exit(1)
    if answer == "raise":
        raise MemoryError
    return answer == "yes" or answer == truth
engine = types.ModuleType("retool_mcore.rewards.grader.engine")
engine.compare, engine.warm_up = compare, lambda: None
import retool_mcore.rewards.grader
retool_mcore.rewards.grader.engine = sys.modules["retool_mcore.rewards.grader.engine"] = engine
from retool_mcore.rewards.grader.zygote import main
main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(pool, "_BOOT", SCRIPTED_BOOT)
    monkeypatch.setattr(equivalence, "decide", lambda answer, truth: None)
    with Grader(timeout_s=PATIENT_S, workers=1) as grader:
        yield grader


@pytest.fixture(scope="module")
def grader():
    with Grader(timeout_s=PATIENT_S) as grader:
        yield grader


def only_worker(grader: Grader) -> int:
    (worker,) = grader.pool._free
    return worker.pid


def stop_answers(grader: Grader) -> int:
    """Its worker now hangs for certain, as a loop in C code would, on any machine."""
    worker = only_worker(grader)
    os.kill(worker, signal.SIGSTOP)
    return worker


def wait_stopped(pid: int) -> None:
    while "T (stopped)" not in (status := Path(f"/proc/{pid}/status").read_text()):
        assert "Z (zombie)" not in status


def has_ended(pid: int) -> bool:
    """Gone, or dead and not yet collected by its parent."""
    for _ in range(1000):
        try:
            if "Z (zombie)" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)", True),
        (r"\begin{pmatrix}1\end{pmatrix}+\begin{pmatrix}2\end{pmatrix}", r"\begin{pmatrix}3\end{pmatrix}", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\frac{", "5", False),
        ("}{", "5", False),
        ("\ud800", "5", False),
        ("line\nbreak", "5", False),
    ],
)
def test_worker_compares(grader, answer, truth, expected):
    assert grader.compare_in_worker(answer, truth) is expected


def test_verdicts_are_remembered_within_bounds(scripted):
    scripted._memo = LRUCache(2)
    assert all(scripted.equivalent("yes", truth) for truth in ("a", "b", "c"))
    assert set(scripted._memo) == {("yes", "b"), ("yes", "c")}
    assert not scripted.equivalent("no", "a")
    stop_answers(scripted)  # now only the memory can answer
    assert scripted.equivalent("yes", "c")
    assert not scripted.equivalent("no", "a")
    assert scripted.counters() == {"front": 0, "memo": 2, "engine": 4, "killed": 0}


def test_what_the_front_decides_needs_no_worker():
    grader = Grader()
    assert grader.equivalent("1,234", "1234.0")
    assert not grader.equivalent("7", "8")
    assert not grader.equivalent("7" * 1_000_000, "8")
    assert grader.pool._zygote is None
    assert grader.counters() == {"front": 3, "memo": 0, "engine": 0, "killed": 0}


def test_a_worker_that_does_not_answer_is_killed_and_replaced(scripted):
    assert scripted.compare_in_worker("2", "2") is True
    stuck = stop_answers(scripted)
    scripted.pool.timeout_s = 0.5
    assert scripted.compare_in_worker("2", "2") is None
    assert scripted.counters()["killed"] == 1
    assert has_ended(stuck)
    scripted.pool.timeout_s = PATIENT_S
    zygote = scripted.pool._zygote.process.pid
    assert scripted.compare_in_worker("2", "2") is True
    assert only_worker(scripted) != stuck
    assert scripted.pool._zygote.process.pid == zygote  # forked, not started anew


def test_a_killed_comparison_is_not_equivalent_and_not_remembered(scripted):
    scripted.compare_in_worker("2", "2")
    stop_answers(scripted)
    scripted.pool.timeout_s = 0.5
    assert scripted.equivalent("yes", "a") is False
    scripted.pool.timeout_s = PATIENT_S
    assert scripted.equivalent("yes", "a") is True


def test_the_reward_says_that_the_grader_gave_up(scripted, monkeypatch):
    """What recipe.filters.verifier_failures counts: a killed comparison, not a wrong answer."""
    monkeypatch.setitem(equivalence._graders, os.getpid(), scripted)
    fields = ("acc", "verifier_failed", "graded_by")
    outcomes = [score(rf"\boxed{{{answer}}}", "a") for answer in ("yes", "yes", "no", "die")]
    assert [tuple(outcome[name] for name in fields) for outcome in outcomes] == [
        (1.0, 0.0, "engine"),
        (1.0, 0.0, "memo"),
        (0.0, 0.0, "engine"),
        (0.0, 1.0, "killed"),
    ]


@pytest.mark.parametrize("victims", [("worker",), ("zygote",), ("worker", "zygote")])
def test_what_died_while_idle_is_replaced_without_harm(scripted, victims):
    scripted.compare_in_worker("2", "2")
    if "worker" in victims:
        os.kill(only_worker(scripted), signal.SIGKILL)
        # It is the zygote's child, not ours: its socket tells that it is gone.
        assert scripted.pool._free[0].connection.poll(PATIENT_S)
    if "zygote" in victims:
        scripted.pool._zygote.process.kill()
        scripted.pool._zygote.process.wait()
    if victims == ("zygote",):
        scripted.pool._free.clear()
    assert scripted.compare_in_worker("yes", "a") is True
    assert scripted.counters()["killed"] == 0


def test_a_worker_that_dies_in_a_comparison_counts_as_killed(scripted):
    assert scripted.compare_in_worker("die", "5") is None
    assert scripted.counters()["killed"] == 1
    assert scripted.compare_in_worker("5", "5") is True


def test_an_error_of_the_algebra_is_no_answer_and_the_worker_lives(scripted):
    assert scripted.compare_in_worker("5", "5") is True
    worker = only_worker(scripted)
    assert scripted.compare_in_worker("raise", "5") is False
    assert only_worker(scripted) == worker
    assert scripted.counters()["killed"] == 0


def test_a_worker_whose_parent_is_gone_ends_a_hanging_comparison_by_itself(monkeypatch):
    monkeypatch.setattr(pool, "_BOOT", SCRIPTED_BOOT)
    made = pool.Pool(1, timeout_s=0.0, memory_mb=4096)  # the worker's own limit is a second
    worker = made._take()
    with pytest.raises(pool.WorkerStopped):
        worker.compare("hang", "5", PATIENT_S)
    made.close()


def test_an_interrupted_comparison_leaves_no_reply_for_the_next_pair(scripted, monkeypatch):
    def interrupted(connection, timeout_s):
        raise KeyboardInterrupt

    assert scripted.compare_in_worker("2", "2") is True
    real = pool._received
    reads = iter([interrupted])  # then the real one
    monkeypatch.setattr(pool, "_received", lambda *given: next(reads, real)(*given))
    with pytest.raises(KeyboardInterrupt):
        scripted.compare_in_worker("2", "2")
    assert scripted.compare_in_worker("2", "3") is False


def test_start_up_does_not_count_against_the_comparison(monkeypatch):
    monkeypatch.setattr(pool, "_BOOT", "import time; time.sleep(3.5); " + SCRIPTED_BOOT)
    with Grader(timeout_s=3.0) as grader:
        assert grader.compare_in_worker("2", "2") is True


def test_a_zygote_that_cannot_start_is_an_error_and_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(pool, "_BOOT", "raise SystemExit(3)")
    with Grader() as grader, pytest.raises(RuntimeError, match="exit code 3"):
        grader.equivalent("|x|", "x")


def test_threads_get_their_own_answers_and_share_the_workers(monkeypatch):
    monkeypatch.setattr(pool, "_BOOT", SCRIPTED_BOOT)
    with Grader(timeout_s=PATIENT_S, workers=2) as grader, ThreadPoolExecutor(8) as threads:

        def ask(n: int) -> list[bool | None]:
            return [grader.compare_in_worker(str(n), str(n + m % 2)) for m in range(20)]

        assert list(threads.map(ask, range(8))) == [[True, False] * 10] * 8
        assert 1 <= len(grader.pool._free) <= 2


def test_an_event_loop_goes_on_while_a_worker_compares(scripted):
    async def ask() -> list[str]:
        scripted.compare_in_worker("2", "2")
        worker, order = stop_answers(scripted), []
        wait_stopped(worker)

        async def compare():
            order.append(await scripted.equivalent_async("yes", "a"))

        async def go_on():
            order.append("loop")
            os.kill(worker, signal.SIGCONT)

        await asyncio.gather(compare(), go_on())
        return order

    assert asyncio.run(ask()) == ["loop", True]


# In a process of its own: forking pytest's, with the threads of whatever other tests imported, is not safe.
FORK = """
import os, sys
from retool_mcore.rewards.grader import pool
pool._BOOT = sys.argv[1]
from retool_mcore.rewards.equivalence import Grader, equivalent
grader = Grader(timeout_s=60)
assert grader.compare_in_worker("5", "5") is True
worker, = grader.pool._free
child = os.fork()
if child == 0:
    try:
        grader.compare_in_worker("5", "5")
    except RuntimeError as error:
        os._exit(7 if "does not survive a fork" in str(error) and equivalent("5 cm", "5") else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert grader.compare_in_worker("6", "6") is True and grader.pool._free == [worker]
"""


def test_a_forked_child_uses_a_grader_of_its_own():
    subprocess.run([sys.executable, "-c", FORK, SCRIPTED_BOOT], check=True, timeout=90)


def test_everything_ends_with_the_parents_sockets(scripted):
    scripted.compare_in_worker("2", "2")
    process, worker = scripted.pool._zygote.process, scripted.pool._free[0]
    scripted.pool._zygote.connection.close()
    assert process.wait(timeout=PATIENT_S) == 0
    assert worker.connection.poll(PATIENT_S)
    with pytest.raises(EOFError):
        worker.connection.recv_bytes()
