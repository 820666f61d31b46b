"""Every test that is about the worker starts one of its own and asks it directly: nothing here depends on which path
`equivalent` takes, on what another test has imported, or on how fast the machine is."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from retool_mcore.reward import equivalence
from retool_mcore.reward.equivalence import Grader

# Long enough for any comparison on any machine: a test that is not about the time-out never meets it.
PATIENT_S = 60.0

# The real worker around a comparison that does what its input says, and that starts without importing math-verify.
SCRIPTED_BOOT = """
import os, sys, time
sys.path[:] = sys.argv[3:]
from retool_mcore.reward import equivalence_worker
def compare(answer, truth):
    if answer == "hang":
        time.sleep(1000)
    if answer == "die":
        os._exit(1)
    if answer == "raise":
        raise MemoryError
    return answer == "yes" or answer == truth
equivalence_worker.compare = compare
equivalence_worker.main(float(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(equivalence, "_BOOT", SCRIPTED_BOOT)
    with Grader(timeout_s=PATIENT_S) as grader:
        yield grader


@pytest.fixture(scope="module")
def grader():
    with Grader(timeout_s=PATIENT_S) as grader:
        yield grader


def wait_dead(pid: int) -> None:
    """Until the process has ended, without collecting it (that is its parent's part)."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        (r"\{1,2\}", r"\{2,1\}", True),
        ("x=5", "5", True),
        ("0.333333", "1/3", True),
        ("42", "43", False),
        ("(1,2)", "(2,1)", False),
        ("1 or 2", "1", False),
        (r"\frac{", "5", False),
        ("}{", "5", False),
        ("\ud800", "5", False),
        ("line\nbreak", "5", False),
    ],
)
def test_worker_compares(grader, answer, truth, expected):
    assert grader.compare_in_worker(answer, truth) is expected


def test_verdicts_of_the_worker_are_remembered_within_bounds(scripted):
    scripted.memo_size = 2
    assert all(scripted.equivalent("yes", truth) for truth in ("a", "b", "c"))
    assert list(scripted._memo) == [("yes", "b"), ("yes", "c")]
    assert not scripted.equivalent("no", "a")
    os.kill(scripted.worker_pid, signal.SIGSTOP)  # now only the memory can answer
    assert scripted.equivalent("yes", "c")
    assert not scripted.equivalent("no", "a")
    assert scripted.killed == 0


def test_plain_numbers_need_no_worker():
    grader = Grader()
    assert grader.equivalent("1,234", "1234.0")
    assert not grader.equivalent("7", "8")
    assert grader.worker_pid is None


def test_a_worker_that_does_not_answer_is_killed_and_replaced(scripted):
    assert scripted.compare_in_worker("2", "2") is True
    stuck = scripted.worker_pid
    # Stopped by signal: hangs for certain, as a loop in C code would, on any machine.
    os.kill(stuck, signal.SIGSTOP)
    scripted.timeout_s = 0.5
    assert scripted.compare_in_worker("2", "2") is None
    assert scripted.killed == 1
    assert scripted.worker_pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)
    scripted.timeout_s = PATIENT_S
    assert scripted.compare_in_worker("2", "2") is True
    assert scripted.worker_pid is not None


def test_a_killed_comparison_is_not_equivalent_and_not_remembered(scripted):
    scripted.compare_in_worker("2", "2")
    os.kill(scripted.worker_pid, signal.SIGSTOP)
    scripted.timeout_s = 0.5
    assert scripted.equivalent("yes", "a") is False
    scripted.timeout_s = PATIENT_S
    assert scripted.equivalent("yes", "a") is True


def test_a_worker_that_died_while_idle_is_replaced_without_harm(scripted):
    scripted.compare_in_worker("2", "2")
    dead = scripted.worker_pid
    os.kill(dead, signal.SIGKILL)
    wait_dead(dead)
    assert scripted.compare_in_worker("yes", "a") is True
    assert scripted.killed == 0


def test_a_worker_that_dies_in_a_comparison_counts_as_killed(scripted):
    assert scripted.compare_in_worker("die", "5") is None
    assert scripted.killed == 1
    assert scripted.compare_in_worker("5", "5") is True


def test_an_error_of_the_algebra_is_no_answer_and_the_worker_lives(scripted):
    assert scripted.compare_in_worker("5", "5") is True
    worker = scripted.worker_pid
    assert scripted.compare_in_worker("raise", "5") is False
    assert scripted.worker_pid == worker
    assert scripted.killed == 0


def test_a_worker_whose_parent_is_gone_ends_a_hanging_comparison_by_itself(monkeypatch):
    monkeypatch.setattr(equivalence, "_BOOT", SCRIPTED_BOOT)
    worker = equivalence.Worker(timeout_s=0.0, memory_mb=4096)  # its own limit is then one second
    with pytest.raises(equivalence.WorkerStopped):
        worker.compare("hang", "5", PATIENT_S)
    # Collected by wait, before kill could send a signal of its own.
    assert worker.process.wait(timeout=PATIENT_S) == -signal.SIGALRM
    worker.kill()


def test_an_interrupted_comparison_leaves_no_reply_for_the_next_pair(scripted, monkeypatch):
    def interrupt(self, timeout_s):
        raise KeyboardInterrupt

    assert scripted.compare_in_worker("2", "2") is True
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(equivalence.Worker, "_read_line", interrupt)
        scripted.compare_in_worker("2", "2")
    assert scripted.compare_in_worker("2", "3") is False


def test_an_endless_comparison_is_no_answer():
    # Wherever sympy gives up on the tower of powers, by hanging, by an error or by memory: never equivalent.
    with Grader(timeout_s=1.0) as grader:
        assert not grader.equivalent("9^{9^{9^{9}}}", "5")


def test_start_up_does_not_count_against_the_comparison(monkeypatch):
    monkeypatch.setattr(equivalence, "_BOOT", "import time; time.sleep(3.5); " + SCRIPTED_BOOT)
    with Grader(timeout_s=3.0) as grader:
        assert grader.compare_in_worker("2", "2") is True


def test_a_worker_that_cannot_start_is_an_error_and_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(equivalence, "_BOOT", "raise SystemExit(3)")
    with Grader() as grader, pytest.raises(RuntimeError, match="exit code 3"):
        grader.equivalent(r"\sqrt{4}", "2")


def test_threads_get_their_own_answers(grader):
    wrong = []

    def ask(n: int) -> None:
        for m in range(5):
            if grader.compare_in_worker(rf"\sqrt{{{n * n}}}", str(n + m % 2)) is not (m % 2 == 0):
                wrong.append((n, m))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_works_inside_an_event_loop(grader):
    async def ask() -> list[bool]:
        in_loop = grader.equivalent(r"\sqrt{49}", "7")
        return [in_loop, await asyncio.to_thread(grader.equivalent, r"\sqrt{64}", "8")]

    assert asyncio.run(ask()) == [True, True]


# In a process of its own: forking pytest's, with the threads of whatever other tests imported, is not safe.
FORK = """
import os
from retool_mcore.reward.equivalence import Grader, equivalent
grader = Grader(timeout_s=60)
assert grader.compare_in_worker("5 cm", "5") is True and equivalent("5 cm", "5")
child = os.fork()
if child == 0:
    try:
        grader.compare_in_worker("5 cm", "5")
    except RuntimeError as error:
        os._exit(7 if "does not survive a fork" in str(error) and equivalent("6 cm", "6") else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
worker = grader.worker_pid
assert grader.compare_in_worker("7 cm", "7") is True and grader.worker_pid == worker
"""


def test_a_forked_child_uses_a_worker_of_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=110)


def test_the_worker_ends_with_its_parents_pipes(scripted):
    scripted.compare_in_worker("2", "2")
    process = scripted._worker.process
    process.stdin.close()
    assert process.wait(timeout=PATIENT_S) == 0
