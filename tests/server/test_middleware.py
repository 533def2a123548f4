"""What the middleware counts for each request, and when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litestar")

from posrec.server.metrics import Metrics
from posrec.server.middleware import Middleware, send_error, send_json
from posrec.server.settings import ServerSettings

SCOPE = {"type": "http", "method": "GET", "path": "/v1/run", "headers": []}


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send_json(send, 200, b"{}")


async def overloaded(scope: Any, receive: Any, send: Any) -> None:
    await send_error(send, 503, "too many requests are waiting; try again")


async def answers_after_disconnect(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "http.disconnect"
    await send_json(send, 200, b"{}")


async def disconnect() -> Any:
    return {"type": "http.disconnect"}


def counted(metrics: Metrics) -> dict[str, float]:
    """The counters that are not 0, by path and status class or by event."""
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return {
        " ".join(sample.labels.values()) or sample.name: sample.value
        for sample in samples if sample.name.endswith("_total") and sample.value
    }  # fmt: skip


@pytest.mark.parametrize(("app", "before", "after"), [
    (answers, {"/v1/run 2xx": 1}, {"/v1/run 2xx": 1}),
    (overloaded, {"/v1/run 5xx": 1, "posrec_refused_total": 1}, {"/v1/run 5xx": 1, "posrec_refused_total": 1}),
    (answers_after_disconnect, {}, {"/v1/run 4xx": 1}),
])  # fmt: skip
def test_an_answer_is_counted_once_and_before_it_is_sent(tmp_path: Path, app: Any, before: Any, after: Any) -> None:
    """Otherwise the counters of a worker that is killed, or slow, lack an answer that a client has received."""
    metrics = Metrics(tmp_path)
    seen = []

    async def send(message: Any) -> None:
        seen.append(counted(metrics))

    asyncio.run(Middleware(app, ServerSettings(run="", shared=""), metrics, {})(SCOPE, disconnect, send))
    assert seen == [before, before]
    assert counted(metrics) == after
