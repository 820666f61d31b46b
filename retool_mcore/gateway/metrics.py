"""A front's counters, in Prometheus' text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from retool_mcore.sandbox.concurrency import FairQueue

BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class FrontMetrics:
    """A registry of its own, so that several fronts can live in one process."""

    def __init__(self, queue: FairQueue):
        self._registry = CollectorRegistry()
        common = {"namespace": "retool_serve", "registry": self._registry}
        self._replies = Counter("replies", "Requests that ended, by route and status.", ["route", "status"], **common)
        self._errors = Counter("errors", "Requests that were refused or failed, by code.", ["code"], **common)
        self._ignored = Counter("ignored_keys", "Unknown keys of requests.", ["key"], **common)
        self._tokens = Counter("tokens", "Tokens, by kind: prompt, cached, sampled.", ["kind"], **common)
        self._calls = Counter("calls", "Calls of tools that ran here, by status.", ["status"], **common)
        self._seconds = Histogram("seconds", "From request to reply.", ["route"], buckets=BUCKETS_S, **common)
        Gauge("running", "Choices at work.", **common).set_function(lambda: queue.running)
        Gauge("waiting", "Choices that wait for a place.", **common).set_function(lambda: queue.waiting)

    def ended(self, route: str, status: int, seconds: float) -> None:
        self._replies.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def failed(self, code: str) -> None:
        self._errors.labels(code).inc()

    def ignored(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            # A client must not fill the registry with names of its own.
            self._ignored.labels(key if key in KNOWN_KEYS else "other").inc()

    def tokens(self, *, prompt: int, cached: int, sampled: int) -> None:
        for kind, count in (("prompt", prompt), ("cached", cached), ("sampled", sampled)):
            self._tokens.labels(kind).inc(count)

    def called(self, status: str) -> None:
        self._calls.labels(status).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


# Keys of OpenAI's that a front ignores.
KNOWN_KEYS = {
    "store",
    "reasoning_effort",
    "service_tier",
    "verbosity",
    "modalities",
    "prediction",
    "web_search_options",
}
