"""/metrics adds up the numbers of all workers, dead ones included; only the queue is that of the living."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import SOURCE

pytest.importorskip("prometheus_client")

WORKER = """
import os, sys
from pathlib import Path
from posrec.server.metrics import Metrics
metrics = Metrics(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
metrics.request("/v1/recommend", 200, 0.004)
metrics.request("/v1/sessions/anna/click", 404, 9)
metrics.request("/favicon.ico", 404, 9)
metrics.batch(8, waiting=5)
metrics.count("unknown_items", 3)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
ALIVE = """
import os
from pathlib import Path
from prometheus_client.multiprocess import mark_process_dead
from posrec.server.metrics import Metrics
folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
mark_process_dead(DEAD, str(folder))
print(Metrics(folder).text())
"""


def python(program: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    line = [sys.executable, "-c", program]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def test_workers_are_summed_and_a_dead_one_leaves_the_queue_alone(tmp_path: Path) -> None:
    workers = [python(WORKER, tmp_path) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == str(worker.pid)
    workers[0].kill()
    workers[0].wait()
    text, _ = python(ALIVE.replace("DEAD", str(workers[0].pid)), tmp_path).communicate()
    workers[1].kill()
    workers[1].wait()
    lines = text.splitlines()
    assert {
        'posrec_requests_total{path="/v1/recommend",status="2xx"} 2.0',
        'posrec_requests_total{path="/v1/sessions",status="4xx"} 2.0',
        'posrec_requests_total{path="other",status="4xx"} 2.0',
        'posrec_requests_total{path="/v1/explain",status="5xx"} 0.0',  # shown before it is first counted
        'posrec_recommend_seconds_bucket{le="0.003"} 0.0',
        'posrec_recommend_seconds_bucket{le="0.005"} 2.0',
        'posrec_recommend_seconds_bucket{le="+Inf"} 2.0',
        "posrec_recommend_seconds_count 2.0",
        'posrec_batch_size_bucket{le="4.0"} 0.0',
        'posrec_batch_size_bucket{le="8.0"} 2.0',
        "posrec_batch_size_sum 16.0",
        "posrec_unknown_items_total 6.0",
        "posrec_store_errors_total 0.0",
        "posrec_queue_length 5.0",  # of the living worker alone
        "# TYPE posrec_requests_total counter",
        "# TYPE posrec_recommend_seconds histogram",
        "# TYPE posrec_queue_length gauge",
    } <= set(lines)
