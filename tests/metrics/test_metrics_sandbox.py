import pytest

from retool_mcore.metrics.sandbox import latencies_s, sandbox_metrics
from retool_mcore.sandbox.base import Status


def record(*calls):
    return {"calls": [{"code": None if s == "malformed" else "1", "status": s, "duration_s": d} for s, d in calls]}


def test_latencies_and_shares_over_all_trajectories():
    records = [
        record(("success", 0.1), ("malformed", 99.0)),
        record(),
        record(("success", 0.2), ("timeout", 5.0), ("sandbox_error", 600.0)),
    ]
    metrics = sandbox_metrics(records)
    assert latencies_s(records) == [0.1, 0.2, 5.0]
    assert metrics["runs"] == 4 and metrics["latency_max"] == 5.0 and metrics["latency_p50"] == pytest.approx(0.2)
    assert metrics["latency_p99"] == pytest.approx(0.2 + 0.98 * 4.8)  # linear between order statistics
    shares = {name: value for name, value in metrics.items() if name.startswith("share/")}
    assert set(shares) == {f"share/{status}" for status in Status} and sum(shares.values()) == pytest.approx(1.0)
    assert (shares["share/success"], shares["share/timeout"], shares["share/memory"]) == (0.5, 0.25, 0.0)


def test_another_tools_call_is_not_the_sandboxs():
    other = {"code": None, "status": "success", "duration_s": 9.0}
    records = [record(("success", 0.1)), {"calls": [other]}]
    assert sandbox_metrics(records)["runs"] == 1 and latencies_s(records) == [0.1]


def test_nothing_to_measure_is_no_metric_and_never_nan():
    assert sandbox_metrics([]) == sandbox_metrics([record(("malformed", 0.0))]) == {}
    lost = sandbox_metrics([record(("sandbox_error", 1.0))])
    assert lost["share/sandbox_error"] == 1.0 and not any(name.startswith("latency") for name in lost)
