"""`retool chat` with the real engine, sandbox and a policy of the cold start."""

import subprocess

import pytest
from e2e_runs import COMMAND


@pytest.mark.e2e
@pytest.mark.nightly  # an engine outside of the template: a minute of imports
@pytest.mark.timeout(600)
def test_a_policy_answers_and_its_answers_can_be_viewed(fork_of_cold_start):
    run = fork_of_cold_start / "t"
    lines = "Compute 12*34.\n/save\n/exit\n"
    done = subprocess.run([COMMAND, "chat", str(run)], input=lines, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " tokens, " in done.stdout and "1 answers: retool view" in done.stdout
    assert (run / "eval" / "chat" / "trajectories.jsonl").is_file()
