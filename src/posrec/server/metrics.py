"""Counters and histograms for Prometheus, summed over the worker processes by prometheus-client's
multiprocess mode.

Every worker keeps its numbers in files of its own. Those of a dead worker stay, so that no counter
ever falls; only its gauges are removed. PROMETHEUS_MULTIPROC_DIR must be set before this module is
imported, which chooses the mode (serve.py does so).
"""

import os
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from posrec.server.schemas import FeedbackEvent

SECONDS = (
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    2.5,
)
SIZES = (1, 2, 4, 8, 16, 32, 64)
WITH_IDS = ("/v1/sessions", "/v1/similar")  # paths that go on with an id
PATHS = (
    "/v1/recommend",
    "/v1/recommend/batch",
    "/v1/feedback",
    "/v1/explain",
    "/v1/items",
    "/v1/run",
    "other",
)
CLASSES = ("2xx", "3xx", "4xx", "5xx")
EVENTS = {
    "refused": "Requests answered 503: the queue was full, or the run or the session store was not available.",
    "reloads": "Runs that were replaced on disk and loaded.",
    "failed_reloads": "Runs that could not be loaded, at the start or after they were replaced on disk.",
    "store_errors": "Requests that the session store did not answer.",
    "unsigned_feedback": "Feedback on answers that the server did not give, in items.",
}
BY_RUN = {
    "answers": "Answers, one for each session of a batch.",
    "popular_answers": "Answers with the most clicked items, since no click of the session was known.",
    "short_answers": "Answers with fewer items than were asked for.",
    "session_clicks": "Clicks of the sessions that were answered.",
    "unknown_items": "Of these clicks, those on items that the model does not know.",
}
FEEDBACK = get_args(FeedbackEvent)
OTHER = "other"  # runs that are not served any more
WORKERS = "posrec_run_workers"
LOADED = "posrec_run_loaded_timestamp_seconds"
TRAINED_UNTIL = "posrec_run_trained_until_timestamp_seconds"
# Their labels, and how those of several workers are joined. The oldest time: a worker that can't
# load a new run shows.
RUN_GAUGES = {
    WORKERS: (
        "Workers that serve the run with this fingerprint.",
        ("run", "fingerprint"),
        "livesum",
    ),
    LOADED: ("When the run was loaded.", ("run",), "livemin"),
    TRAINED_UNTIL: (
        "The latest click that the run was trained on.",
        ("run",),
        "livemin",
    ),
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # several workers have none either


class RunMetrics:
    def __init__(
        self,
        name: str,
        by_run: dict[str, Counter],
        feedback: Counter,
        gauges: dict[str, Gauge],
    ) -> None:
        self.name = name
        self.gauges = gauges
        # `labels` costs more than counting does, so each series is looked up once. This also shows
        # all series from 0.
        self.counters = {kind: counter.labels(name) for kind, counter in by_run.items()}
        self.feedback = {event: feedback.labels(name, event) for event in FEEDBACK}
        self.fingerprint: str | None = None

    def session(self, clicks: int, unknown: int) -> None:
        self.counters["session_clicks"].inc(clicks)
        if unknown:
            self.counters["unknown_items"].inc(unknown)

    def answer(self, is_popular: bool, is_short: bool) -> None:
        self.counters["answers"].inc()
        if is_popular:
            self.counters["popular_answers"].inc()
        if is_short:
            self.counters["short_answers"].inc()

    def loaded(self, fingerprint: str, trained_until: object) -> None:
        """The time is in milliseconds; a run that was built by hand may have none."""
        if self.fingerprint is not None:
            self.gauges[WORKERS].labels(self.name, self.fingerprint).set(0)
        self.fingerprint = fingerprint
        self.gauges[WORKERS].labels(self.name, fingerprint).set(1)
        self.gauges[LOADED].labels(self.name).set(time.time())
        if isinstance(trained_until, int):
            self.gauges[TRAINED_UNTIL].labels(self.name).set(trained_until / 1000)


class Metrics:
    """What one worker counts. `folder` holds the files of all workers; with None its own numbers
    are all there are."""

    def __init__(self, folder: Path | None, runs: Iterable[str] = ()) -> None:
        self.folder = folder
        registry = self.registry = CollectorRegistry()
        requests = Counter(
            "posrec_requests",
            "Requests by path and status.",
            ("path", "status"),
            registry=registry,
        )
        series = product((*PATHS, *WITH_IDS), CLASSES)
        self.requests = {
            (path, int(status[0])): requests.labels(path, status)
            for path, status in series
        }
        self.events = {
            name: Counter(f"posrec_{name}", about, registry=registry)
            for name, about in EVENTS.items()
        }
        by_run = {
            name: Counter(f"posrec_{name}", about, ("run",), registry=registry)
            for name, about in BY_RUN.items()
        }
        feedback = self.feedback_counter = Counter(
            "posrec_feedback",
            "Answers that were shown, and items that were clicked, put into the cart or bought.",
            ("run", "event"),
            registry=registry,
        )
        gauges = {
            name: Gauge(name, about, labels, multiprocess_mode=mode, registry=registry)  # type: ignore[arg-type]
            for name, (about, labels, mode) in RUN_GAUGES.items()
        }
        self.runs = {name: RunMetrics(name, by_run, feedback, gauges) for name in runs}
        self.seconds = Histogram(
            "posrec_recommend_seconds",
            "Time to answer /v1/recommend.",
            buckets=SECONDS,
            registry=registry,
        )
        self.sizes = Histogram(
            "posrec_batch_size",
            "Requests computed together.",
            buckets=SIZES,
            registry=registry,
        )
        self.queue = Gauge(
            "posrec_queue_length",
            "Requests that wait.",
            multiprocess_mode="livesum",
            registry=registry,
        )

    def count(self, event: str, number: int = 1) -> None:
        self.events[event].inc(number)

    def batch(self, size: int, waiting: int) -> None:
        self.sizes.observe(size)
        self.queue.set(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        known = (
            path
            if path in PATHS
            else next(
                (start for start in WITH_IDS if path.startswith(f"{start}/")), "other"
            )
        )
        self.requests[known, status // 100].inc()
        if status == 503:
            self.count("refused")
        elif known == "/v1/recommend":
            self.seconds.observe(seconds)

    def feedback(self, run: str | None, event: str, items: int) -> None:
        """`run` is None for an answer that the server did not give."""
        if run is None:
            self.count("unsigned_feedback", items)
            return
        counter = (
            self.runs[run].feedback[event]
            if run in self.runs
            else self.feedback_counter.labels(OTHER, event)
        )
        counter.inc(1 if event == "shown" else items)

    def text(self) -> str:
        return generate_latest(self).decode()  # it needs `collect` alone

    def collect(self) -> Iterator[Metric]:
        if self.folder is None:
            registry = self.registry
        else:
            self.folder.mkdir(
                parents=True, exist_ok=True
            )  # a cleaner of temporary folders may have removed it
            remove_gauges_of_the_dead(self.folder)
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self.folder))  # type: ignore[no-untyped-call]
        for metric in registry.collect():
            if metric.name == WORKERS:
                metric.samples = [
                    sample for sample in metric.samples if sample.value
                ]  # of runs that are served
            yield metric


def remove_gauges_of_the_dead(folder: Path) -> None:
    for file in folder.glob("gauge_live*_*.db"):
        process = int(file.stem.rpartition("_")[2])
        if not is_alive(process):
            mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]


def is_alive(process: int) -> bool:
    """Whether a process of this user has this id."""
    try:
        os.kill(process, 0)
    except OSError:  # there is none, or it is another user's
        return False
    return True
