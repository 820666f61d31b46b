"""Ray's own 30 s for its processes are not enough on a busy machine: it is started again, and nothing else is."""

import subprocess
import sys

import pytest

from retool_mcore.backends.verl import cluster

TIMED_OUT = "The current node timed out during startup. This could happen because some of the raylet failed."


def starting(errors):
    """A start that raises each of `errors` before it works; its calls."""
    left, calls = list(errors), []

    def start():
        calls.append(1)
        if left:
            raise left.pop(0)
        return "started"

    return start, calls


def test_a_start_that_timed_out_is_made_again(capsys):
    start, calls = starting([Exception(TIMED_OUT)] * 2)
    assert cluster.patiently(start) == "started" and len(calls) == 3
    assert "start 2 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("errors", [[Exception(TIMED_OUT)] * 3, [RuntimeError("no such model")]])
def test_what_is_no_time_out_or_does_not_end_is_raised(errors):
    start, calls = starting(errors)
    with pytest.raises(type(errors[0]), match=str(errors[0])[:9]):
        cluster.patiently(start)
    assert len(calls) == len(errors)


def test_what_the_failed_start_left_is_ended_and_nothing_else(tmp_path):
    program = tmp_path / "raylet"
    program.symlink_to(sys.executable)
    left = subprocess.Popen([program, "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen(["/bin/sleep", "60"])
    cluster.patiently(starting([Exception(TIMED_OUT)])[0])
    assert left.wait(timeout=10) == -9 and other.poll() is None
    other.kill()
