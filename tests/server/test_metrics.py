"""/metrics sums the numbers of all workers, dead ones included; gauges are of living ones alone."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from posrec.server.metrics import CACHED, Metrics
from tests.helpers import SOURCE

WORKER = """
import os, sys
from pathlib import Path
from posrec.server.metrics import Metrics
metrics = Metrics(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), ["night"])
metrics.request("/v1/recommend", 200, 0.004)
metrics.request("/v1/sessions/anna/click", 404, 9)
metrics.request("/favicon.ico", 404, 9)
metrics.batch(8, waiting=5)
run = metrics.runs["night"]
run.loaded("f0", None)
run.loaded("f1", 1000 * os.getpid())
run.session(4, unknown=3)
run.answer(is_popular=True, is_short=False)
metrics.feedback("night", "shown", 20)
metrics.feedback("night", "clicked", 2)
metrics.feedback("last night", "clicked", 1)
metrics.feedback(None, "shown", 20)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
ALIVE = """
import os
from pathlib import Path
from posrec.server.metrics import Metrics
print(Metrics(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])).text())
"""
# Of two workers. A series is shown before it is first counted; "shown" counts answers, "clicked"
# items; run_workers and queue_length are of the living worker alone.
EXPECTED = """
posrec_requests_total{path="/v1/recommend",status="2xx"} 2.0
posrec_requests_total{path="/v1/sessions",status="4xx"} 2.0
posrec_requests_total{path="other",status="4xx"} 2.0
posrec_requests_total{path="/v1/explain",status="5xx"} 0.0
posrec_recommend_seconds_bucket{le="0.003"} 0.0
posrec_recommend_seconds_bucket{le="0.005"} 2.0
posrec_recommend_seconds_bucket{le="+Inf"} 2.0
posrec_recommend_seconds_count 2.0
posrec_batch_size_bucket{le="4.0"} 0.0
posrec_batch_size_bucket{le="8.0"} 2.0
posrec_batch_size_sum 16.0
posrec_unknown_items_total{run="night"} 6.0
posrec_session_clicks_total{run="night"} 8.0
posrec_answers_total{run="night"} 2.0
posrec_popular_answers_total{run="night"} 2.0
posrec_short_answers_total{run="night"} 0.0
posrec_feedback_total{event="shown",run="night"} 2.0
posrec_feedback_total{event="clicked",run="night"} 4.0
posrec_feedback_total{event="clicked",run="other"} 2.0
posrec_unsigned_feedback_total 40.0
posrec_run_workers{fingerprint="f1",run="night"} 1.0
posrec_store_errors_total 0.0
posrec_queue_length 5.0
# TYPE posrec_requests_total counter
# TYPE posrec_recommend_seconds histogram
# TYPE posrec_queue_length gauge
"""


def python(program: str, folder: Path) -> subprocess.Popen[str]:
    variables = {"PYTHONPATH": str(SOURCE), "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_workers_are_summed_and_a_dead_one_leaves_the_queue_alone(
    tmp_path: Path,
) -> None:
    workers = [python(WORKER, tmp_path) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == str(worker.pid)
    dead, alive = workers
    dead.kill()
    dead.wait()
    text, _ = python(ALIVE, tmp_path).communicate()
    alive.kill()
    alive.wait()
    # The process that was asked has taken over the file of the dead worker.
    assert len(list(tmp_path.glob("counter_*.db"))) == 2
    assert len(list(tmp_path.glob("histogram_*.db"))) == 2
    lines = text.splitlines()
    assert set(EXPECTED.strip().splitlines()) <= set(lines)
    trained_until = 'posrec_run_trained_until_timestamp_seconds{run="night"}'
    assert f"{trained_until} {float(alive.pid)}" in lines
    assert "f0" not in text  # which no worker serves any more


def test_many_scrapers_share_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(None)
    texts = iter("ab")
    threads: list[int] = []

    def text() -> str:
        threads.append(threading.get_ident())
        return next(texts)

    async def scrape() -> list[str]:
        shared = await asyncio.gather(*(metrics.recent_text() for _ in range(8)))
        metrics.read_at -= 2 * CACHED
        return [*shared, await metrics.recent_text()]

    monkeypatch.setattr(metrics, "text", text)
    assert asyncio.run(scrape()) == [*"aaaaaaaa", "b"]
    assert threading.get_ident() not in threads
