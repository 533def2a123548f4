"""Metrics for Prometheus, summed over the workers by prometheus-client's multiprocess mode.

Every worker keeps its numbers in files of its own. The worker that replaces a dead one goes on with
its files, so that no counter ever falls; only gauges are removed. serve.py sets
PROMETHEUS_MULTIPROC_DIR, which chooses the mode, before this module is imported.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

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

from posrec.server.schemas import EVENTS as FEEDBACK_EVENTS

MILLISECONDS = (1, 2, 3, 5, 7.5, 10, 15, 25, 50, 100, 250, 1000, 2500)
# Paths that are not listed, runs that are not served any more, and a shop's own events: clients
# choose their names, and every name would be a series.
OTHER = "other"
WITH_IDS = ("/v1/sessions", "/v1/similar")  # paths that go on with an id
PATHS = (
    "/v1/recommend",
    "/v1/recommend/batch",
    "/v1/rank",
    "/v1/feedback",
    "/v1/explain",
    "/v1/items",
    "/v1/run",
    OTHER,
)
EVENTS = {
    "refused": "Requests answered 503: the queue was full, or the run or the session store "
    "was not available.",
    "reloads": "Runs that were replaced on disk and loaded.",
    "failed_reloads": "Runs that could not be loaded, at the start or after they were "
    "replaced on disk.",
    "store_errors": "Requests that the session store did not answer.",
    "lost_log_lines": "Lines of the log that could not be written in time.",
    "unsigned_feedback": "Feedback on answers that the server did not give, in items.",
}
BY_RUN = {
    "answers": "Answers, one for each session of a batch.",
    "popular_answers": "Answers with the most clicked items of late, since no click of the "
    "session was known.",
    "short_answers": "Answers with fewer items than were asked for.",
    "session_clicks": "Clicks of the sessions that were answered.",
    "unknown_items": "Of these clicks, those on items that the model does not know.",
}
WORKERS = "posrec_run_workers"
CACHED = 1.0  # seconds for which a text is sent again

disable_created_metrics()  # type: ignore[no-untyped-call]  # several workers have none either


class RunMetrics:
    def __init__(self, name: str, metrics: "Metrics") -> None:
        self.name = name
        self.metrics = metrics
        # `labels` costs more than counting does, so each series is looked up once.
        self.counters = {
            kind: counter.labels(name) for kind, counter in metrics.by_run.items()
        }
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
        metrics = self.metrics
        if self.fingerprint is not None:
            metrics.workers.labels(self.name, self.fingerprint).set(0)
        self.fingerprint = fingerprint
        metrics.workers.labels(self.name, fingerprint).set(1)
        metrics.load_time.labels(self.name).set(time.time())
        if isinstance(trained_until, int):
            metrics.trained_until.labels(self.name).set(trained_until / 1000)


class Metrics:
    """What one worker counts. `folder` holds the files of all workers; if it is None, only the
    numbers of this process are shown."""

    def __init__(self, folder: Path | None, runs: Iterable[str] = ()) -> None:
        self.folder = folder
        if folder is not None:
            take_over_files_of_the_dead(folder)
        self.reading = asyncio.Lock()
        self.read_at = -CACHED
        self.read_text = ""
        registry = CollectorRegistry()
        self.registry = registry
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge_sum = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        # The oldest time of all workers: it shows that one of them can't load a new run.
        gauge_min = partial(Gauge, registry=registry, multiprocess_mode="livemin")
        requests = counter(
            "posrec_requests", "Requests by path and status.", ("path", "status")
        )
        self.requests = {
            (path, digit): requests.labels(path, f"{digit}xx")
            for path, digit in product((*PATHS, *WITH_IDS), (2, 3, 4, 5))
        }
        self.events = {
            name: counter(f"posrec_{name}", about) for name, about in EVENTS.items()
        }
        self.by_run = {
            name: counter(f"posrec_{name}", about, ("run",))
            for name, about in BY_RUN.items()
        }
        self.feedback_counter = counter(
            "posrec_feedback",
            "Answers that were shown, and items by what else became of them.",
            ("run", "event"),
        )
        self.workers = gauge_sum(
            WORKERS,
            "Workers that serve the run with this fingerprint.",
            ("run", "fingerprint"),
        )
        self.load_time = gauge_min(
            "posrec_run_loaded_timestamp_seconds", "When the run was loaded.", ("run",)
        )
        self.trained_until = gauge_min(
            "posrec_run_trained_until_timestamp_seconds",
            "The latest click that the run was trained on.",
            ("run",),
        )
        self.queue = gauge_sum("posrec_queue_length", "Requests that wait.")
        self.runs = {name: RunMetrics(name, self) for name in runs}
        for run, event in product(self.runs, (*FEEDBACK_EVENTS, OTHER)):
            self.feedback_counter.labels(run, event)  # shown before it is first counted
        self.seconds = histogram(
            "posrec_recommend_seconds",
            "Time to answer /v1/recommend.",
            buckets=[milliseconds / 1000 for milliseconds in MILLISECONDS],
        )
        self.sizes = histogram(
            "posrec_batch_size",
            "Requests computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )

    def count(self, event: str, number: int = 1) -> None:
        self.events[event].inc(number)

    def batch(self, size: int, waiting: int) -> None:
        self.sizes.observe(size)
        self.queue.set(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        label = path if path in PATHS else OTHER
        for start in WITH_IDS:
            if path.startswith(f"{start}/"):
                label = start
        self.requests[label, status // 100].inc()
        if status == 503:
            self.count("refused")
        elif label == "/v1/recommend":
            self.seconds.observe(seconds)

    def feedback(self, run: str | None, event: str, items: int) -> None:
        """`run` is None for an answer that the server did not give."""
        if run is None:
            self.count("unsigned_feedback", items)
            return
        number = 1 if event == "shown" else items  # impressions count by answers
        label = run if run in self.runs else OTHER
        kind = event if event in FEEDBACK_EVENTS else OTHER
        self.feedback_counter.labels(label, kind).inc(number)

    async def recent_text(self) -> str:
        """Read in a thread and at most once a second, however many ask."""
        async with self.reading:
            if time.monotonic() - self.read_at > CACHED:
                self.read_text = await asyncio.to_thread(self.text)
                self.read_at = time.monotonic()
        return self.read_text

    def text(self) -> str:
        try:
            return generate_latest(self).decode()  # it needs `collect` alone
        except FileNotFoundError:  # it was taken over by a new worker meanwhile
            return self.text()

    def collect(self) -> Iterator[Metric]:
        if self.folder is None:
            registry = self.registry
        else:
            # A cleaner of temporary folders may have removed it.
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_gauges_of_the_dead(self.folder)
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self.folder))  # type: ignore[no-untyped-call]
        for metric in registry.collect():
            if metric.name == WORKERS:  # without runs that were replaced
                metric.samples = [sample for sample in metric.samples if sample.value]
            yield metric


def remove_gauges_of_the_dead(folder: Path) -> None:
    for file in folder.glob("gauge_live*_*.db"):
        process = process_of(file)
        if not is_alive(process):
            mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]


def take_over_files_of_the_dead(folder: Path) -> None:
    """At most one file of each kind: several workers may be replaced."""
    for kind in ("counter", "histogram"):
        own = folder / f"{kind}_{os.getpid()}.db"
        for file in folder.glob(f"{kind}_*.db"):
            if not own.exists() and not is_alive(process_of(file)):
                with suppress(FileNotFoundError):  # another worker was quicker
                    file.rename(own)


def process_of(file: Path) -> int:
    return int(file.stem.rpartition("_")[2])


def is_alive(process: int) -> bool:
    """Whether a process of this user has this id."""
    try:
        os.kill(process, 0)
    except OSError:  # there is none, or it is another user's
        return False
    return True
