"""Which failures of a stage are worth another attempt."""

import json

import pytest

from retool_mcore.cluster.retry import FAILURES, error_signature, record_failure


@pytest.fixture(autouse=True)
def _one_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "sft failed (exit code 1): OSError: [Errno 28]\nThe whole log: /a",
            "sft failed (exit code 1): OSError: [Errno 28]",
        ),
        ("ValueError: at 0x7f3a of pid 12", "ValueError: at 0x11bb of pid 99821"),
        ("no route to 10.0.0.1:6379", "no route to 192.168.20.31:51203"),
        ("FileNotFoundError: '/scratch/u1/run_3/x.pt'", "FileNotFoundError: '/scratch/u1/run_4/other/y.pt'"),
        ("worker 0a1b2c3d4e5f60718293 died", "worker ffeeddccbbaa99887766 died"),
        ("run 3f2a8b1c-1111-4222-8333-123456789abc", "run 00000000-aaaa-4bbb-8ccc-0123456789ab"),
        ("took 1.5e-3 s on node-1", "took 20 s on node-17"),
    ],
)
def test_what_differs_each_time_does_not_count(one, other):
    assert error_signature(one) == error_signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rl failed (killed by SIGKILL): x", "rl failed (killed by SIGSEGV): x"),
        ("ValueError: heads", "KeyError: heads"),
        ("RuntimeError: loss is nan", "RuntimeError: loss is inf"),
        ("dead beef", "beef dead"),
    ],
)
def test_other_errors_stay_apart(one, other):
    assert error_signature(one) != error_signature(other)


def test_a_first_failure_is_tried_again_and_written_down(tmp_path):
    decision = record_failure(tmp_path / "rl", 1, 12, "rl failed: OSError: disk 3")
    assert decision.requeue and "after step 12" in decision.why
    (entry,) = map(json.loads, (tmp_path / "rl" / FAILURES).read_text().splitlines())
    assert (entry["attempt"], entry["step"], entry["fingerprint"]) == (1, 12, "rl failed: OSError: disk <n>")
    assert entry["job"] == "7" and entry["time"]


def test_the_same_error_at_the_same_step_stops(tmp_path):
    assert record_failure(tmp_path, 1, 12, "ValueError: at 0x7f3a").requeue
    decision = record_failure(tmp_path, 2, 12, "ValueError: at 0x11bb")
    assert not decision.requeue
    assert "same error" in decision.why and "step 12" in decision.why and "ValueError: at <address>" in decision.why


def test_another_step_or_another_error_in_between_goes_on(tmp_path):
    for attempt, (step, message) in enumerate([(12, "a"), (13, "a"), (13, "b"), (13, "a"), (12, "a")], start=1):
        assert record_failure(tmp_path, attempt, step, message).requeue


def test_a_job_fails_at_most_so_often_and_a_new_one_counts_anew(tmp_path, monkeypatch):
    decisions = [record_failure(tmp_path, n, n, "node gone", max_attempts=3) for n in (1, 2, 3)]
    assert [decision.requeue for decision in decisions] == [True, True, False]
    assert "3 attempts" in decisions[-1].why
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert record_failure(tmp_path, 4, 4, "node gone", max_attempts=3).requeue


def test_two_nodes_that_fail_alike_are_two_errors(tmp_path):
    """The fingerprint has no numbers: "n17 silent" and "n23 silent" are one sentence."""
    said = "node {}, answer: no answer within 120 s: look at it with `scontrol show node {}`"
    for node, requeued in (("n17", True), ("n23", True), ("n23", False)):
        assert record_failure(tmp_path, 1, 0, said.format(node, node), nodes=[node]).requeue is requeued
