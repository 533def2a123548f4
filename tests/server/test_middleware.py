"""What is noted of a request, and when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litestar")

from posrec.server.metrics import Metrics
from posrec.server.middleware import Edge, refuse, respond
from posrec.server.settings import ServerSettings

SCOPE = {"type": "http", "method": "GET", "path": "/v1/run", "headers": []}


async def well(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, 200, b"{}")


async def too_much(scope: Any, receive: Any, send: Any) -> None:
    await refuse(send, 503, "too much to do; try again")


async def left(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "http.disconnect"
    await respond(send, 200, b"{}")


async def gone() -> Any:
    return {"type": "http.disconnect"}


def counted(metrics: Metrics) -> dict[str, float]:
    return {name: number for name, number in metrics.totals().items() if number}


@pytest.mark.parametrize(("app", "before", "after"), [
    (well, {"/v1/run 2xx": 1}, {"/v1/run 2xx": 1}),
    (too_much, {"/v1/run 5xx": 1, "refused": 1}, {"/v1/run 5xx": 1, "refused": 1}),
    (left, {}, {"/v1/run 4xx": 1}),
])  # fmt: skip
def test_an_answer_is_counted_once_and_before_it_leaves(tmp_path: Path, app: Any, before: Any, after: Any) -> None:
    """Else the count of a worker that is killed, or just slow, lacks an answer that its client has."""
    metrics = Metrics(tmp_path)
    seen = []

    async def send(message: Any) -> None:
        seen.append(counted(metrics))

    asyncio.run(Edge(app, ServerSettings(run="", shared=""), metrics, {})(SCOPE, gone, send))
    assert seen == [before, before]
    assert counted(metrics) == after
