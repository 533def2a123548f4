"""What the application counts for each request, and when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from posrec.server.app import Application
from posrec.server.batching import Overloaded
from posrec.server.http.router import Router
from posrec.server.metrics import Metrics
from posrec.server.schemas import RecommendRequest
from posrec.server.settings import ServerSettings

SCOPE = {"type": "http", "method": "POST", "path": "/v1/run", "headers": [], "query_string": b""}


async def answers() -> dict[str, str]:
    return {}


async def overloaded() -> None:
    raise Overloaded


async def reads_its_body(data: RecommendRequest) -> None:
    raise AssertionError("the client disconnects before")


async def disconnect() -> Any:
    return {"type": "http.disconnect"}


def counted(metrics: Metrics) -> dict[str, float]:
    """The counters that are not 0, by path and status class or by event."""
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return {
        " ".join(sample.labels.values()) or sample.name: sample.value
        for sample in samples if sample.name.endswith("_total") and sample.value
    }  # fmt: skip


@pytest.mark.parametrize(("handler", "expected", "messages"), [
    (answers, {"/v1/run 2xx": 1}, 2),
    (overloaded, {"/v1/run 5xx": 1, "posrec_refused_total": 1}, 2),
    (reads_its_body, {"/v1/run 4xx": 1}, 0),
])  # fmt: skip
def test_an_answer_is_counted_once_and_before_it_is_sent(
    tmp_path: Path, handler: Any, expected: dict[str, float], messages: int
) -> None:
    """Otherwise the counters of a worker that is killed, or slow, lack an answer that a client has received."""
    metrics, router = Metrics(tmp_path), Router()
    router.post("/v1/run")(handler)
    seen = []

    async def send(message: Any) -> None:
        seen.append(counted(metrics))

    asyncio.run(Application(router, ServerSettings(run=""), metrics)(SCOPE, disconnect, send))
    assert seen == [expected] * messages
    assert counted(metrics) == expected
