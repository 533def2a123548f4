"""Counters and histograms for Prometheus, summed over the worker processes.

prometheus-client's multiprocess mode: every worker keeps its numbers in files of its own, and the worker that answers
/metrics adds up all of them. The files of a dead worker stay, so that no counter ever falls; only its queue length is
removed (serve.py). The mode is chosen when prometheus_client is imported: the environment variable
PROMETHEUS_MULTIPROC_DIR must be set before this module is imported (serve.py does so). A single worker needs no
files and answers with its own numbers.
"""

from itertools import product
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64)
WITH_IDS = ("/v1/sessions", "/v1/similar")  # paths that go on with an id
PATHS = ("/v1/recommend", "/v1/recommend/batch", "/v1/feedback", "/v1/explain", "/v1/items", "/v1/run", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx")
EVENTS = {
    "unknown_items": "Clicks on items that the model does not know.",
    "refused": "Requests answered 503: the queue was full, or the run or the session store was not available.",
    "reloads": "Runs that were replaced on disk and loaded.",
    "failed_reloads": "Runs that could not be loaded, at the start or after they were replaced on disk.",
    "store_errors": "Requests that the session store did not answer.",
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # several workers have none either


class Metrics:
    """What one worker counts. `folder` holds the files of all workers; None where there is only one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        registry = self.registry = CollectorRegistry()
        # `labels` costs more than counting does, so each series is looked up once. This also shows all series from 0.
        requests = Counter("posrec_requests", "Requests by path and status.", ("path", "status"), registry=registry)
        series = product((*PATHS, *WITH_IDS), CLASSES)
        self.requests = {(path, int(status[0])): requests.labels(path, status) for path, status in series}
        self.events = {name: Counter(f"posrec_{name}", about, registry=registry) for name, about in EVENTS.items()}
        self.seconds = Histogram(
            "posrec_recommend_seconds", "Time to answer /v1/recommend.", buckets=SECONDS, registry=registry
        )
        self.sizes = Histogram("posrec_batch_size", "Requests computed together.", buckets=SIZES, registry=registry)
        self.queue = Gauge("posrec_queue_length", "Requests that wait.", multiprocess_mode="livesum", registry=registry)

    def count(self, event: str, number: int = 1) -> None:
        self.events[event].inc(number)

    def batch(self, size: int, waiting: int) -> None:
        """A batch of this size is computed, and so many requests still wait."""
        self.sizes.observe(size)
        self.queue.set(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        known = path if path in PATHS else next((start for start in WITH_IDS if path.startswith(f"{start}/")), "other")
        self.requests[known, status // 100].inc()
        if known == "/v1/recommend":
            self.seconds.observe(seconds)
        if status == 503:
            self.count("refused")

    def text(self) -> str:
        """The sums over all workers, in the Prometheus text format."""
        if self.folder is None:
            registry = self.registry
        else:
            self.folder.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary folders may have removed it
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self.folder))  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode()
