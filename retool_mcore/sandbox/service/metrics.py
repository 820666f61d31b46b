"""A service's counters, in Prometheus' text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.concurrency import FairQueue
from retool_mcore.sandbox.service.queue import Runs

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class ServiceMetrics:
    """A registry of its own, so that several services can live in one process."""

    def __init__(self, queue: FairQueue, runs: Runs, level: str):
        self._registry = CollectorRegistry()
        common = {"namespace": "retool_sandbox", "registry": self._registry}
        self.queue_s = Histogram("queue_seconds", "Wait for a slot.", buckets=BUCKETS_S, **common)
        self.run_s = Histogram("run_seconds", "Run of a program, start to reply.", buckets=BUCKETS_S, **common)
        self._runs = Counter("runs", "Runs that ended, by status.", ["status"], **common)
        self._refused = Counter("refused", "Requests that were not run.", ["reason"], **common)
        for status in Status:
            self._runs.labels(status)
        for reason in ("full", "draining", "invalid", "session"):
            self._refused.labels(reason)
        Gauge("running", "Programs that run.", **common).set_function(lambda: queue.running)
        Gauge("queued", "Runs that wait for a slot.", **common).set_function(lambda: queue.waiting)
        Gauge("slots", "Programs that may run at once.", **common).set_function(lambda: queue.slots)
        Gauge("joined", "Repeated requests that joined an earlier one.", **common).set_function(lambda: runs.joined)
        Gauge("isolation", "1 for the level that holds.", ["level"], **common).labels(level).set(1)

    def ended(self, status: Status, queue_s: float, run_s: float) -> None:
        self._runs.labels(status).inc()
        self.queue_s.observe(queue_s)
        self.run_s.observe(run_s)

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
