"""From a request to its route: paths and methods, and what is counted when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from posrec.server.batching import BackgroundQueue, Overloaded
from posrec.server.http.application import Application
from posrec.server.http.messages import Disconnected, Request, error_answer
from posrec.server.metrics import Metrics
from posrec.server.settings import ServerSettings
from tests.server.raw import SESSION, Client, ask, head, recommend
from tests.server.server_process import Server

pytest.importorskip("uvicorn")


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


async def answers() -> dict[str, str]:
    return {}


async def overloaded() -> None:
    raise Overloaded


async def disconnected() -> None:
    raise Disconnected


def counted(metrics: Metrics) -> dict[str, float]:
    """The counters that are not 0, by path and status class or by event."""
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return {
        " ".join(sample.labels.values()) or sample.name: sample.value
        for sample in samples
        if sample.name.endswith("_total") and sample.value
    }


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (answers, {"/v1/run 2xx": 1}),
        (overloaded, {"/v1/run 5xx": 1, "posrec_refused_total": 1}),
        (disconnected, {"/v1/run 4xx": 1}),
    ],
)
def test_an_answer_is_counted_before_it_is_sent(tmp_path: Path, handler: Any, expected: dict[str, float]) -> None:
    """Otherwise the counters of a worker that is killed, or slow, lack an answer that a client has received."""
    metrics = Metrics(tmp_path)
    application = Application(ServerSettings(("run",)), metrics, BackgroundQueue(1))
    application.route("POST", "/v1/run")(handler)
    request = Request("POST", b"/v1/run", b"", [(b"host", b"localhost")])
    assert application.admit(request) is None
    asyncio.run(application.answer(request))
    assert counted(metrics) == expected


@pytest.mark.parametrize(
    "path", ["/v1/recommend/", "/v1/recommend?x=1", "/v1%2Frecommend", "/v1//recommend//", "//v1/recommend"]
)
def test_other_ways_to_write_the_path(server: Server, path: str) -> None:
    request = head("POST", path, f"Content-Length: {len(SESSION)}") + SESSION
    assert ask(server, request).json()["items"] == ask(server, recommend()).json()["items"]


@pytest.mark.parametrize("path", ["/V1/recommend", "/v1/./recommend", "/x/../v1/recommend"])
def test_paths_that_are_not_there(server: Server, path: str) -> None:
    assert ask(server, head("POST", path, f"Content-Length: {len(SESSION)}") + SESSION).status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/sessions/%FE/click", 400),
        ("POST", "/v1/sessions/a%ED%A0%80/click", 400),  # a surrogate
        ("GET", "/v1/similar/%FF", 400),
        ("GET", "/v1/items?query=%FF", 400),
        ("GET", "/v1/similar/%EF%BF%BD", 404),  # the replacement character itself
        ("GET", "/v1/items?query=%C3%BC", 200),
    ],
)
def test_an_address_that_is_not_utf8_is_refused(server: Server, method: str, path: str, status: int) -> None:
    answer = ask(server, head(method, path, "Content-Length: 0"))
    assert answer.status == status
    assert ("percent-encoded UTF-8" in answer.body.decode()) is (status == 400)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_run_no_other_scripts_and_are_shown_in_no_frame(server: Server, path: str) -> None:
    """tests/browser shows that the pages work under this policy."""
    headers = ask(server, head("GET", path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")


def test_head_is_answered_as_get_without_the_body(server: Server) -> None:
    for path in ("/healthz", "/readyz", "/", "/docs", "/v1/run", "/v1/items?limit=3"):
        expected = ask(server, head("GET", path))
        with Client(server) as client:
            client.sendall(head("HEAD", path) + head("GET", "/healthz"))
            answer = client.read("HEAD")
            assert answer.status == 200
            assert {name: answer.headers[name] for name in ("content-type", "content-length")} == {
                name: expected.headers[name] for name in ("content-type", "content-length")
            }
            assert client.read().body == b"ok"
    assert ask(server, head("HEAD", "/nothing")).status == 404
    assert ask(server, head("HEAD", "/v1/recommend")).status == 405


def test_a_405_lists_the_allowed_methods(server: Server) -> None:
    for method in ("GET", "PUT", "DELETE", "TRACE"):
        answer = server.ask(method, "/v1/recommend")
        assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (SystemError("error return without exception set"), 503),  # of numpy
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), 503),
        (RuntimeError("shapes do not match"), 500),
    ],
    ids=["Python", "numpy", "torch", "another"],
)
def test_where_memory_runs_out_a_request_is_refused(error: Exception, status: int) -> None:
    assert error_answer(error).status == status
