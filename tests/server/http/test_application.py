"""From a request to its route: paths and methods, and what is counted when."""

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from posrec.server.errors import Disconnected, Overloaded
from posrec.server.http.counting import CountAnswers
from posrec.server.http.responses import error_response
from posrec.server.metrics import Metrics
from tests.server.raw import SESSION, Client, ask, head, post
from tests.server.server_process import Server


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


async def overloaded(request: Request) -> Response:
    return error_response(Overloaded())


async def disconnected(request: Request) -> Response:
    return error_response(Disconnected())


def counted(metrics: Metrics) -> dict[str, float]:
    """All counters above 0, by their labels, or by their name where they have none."""
    counters = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total") and sample.value:
                labels = " ".join(sample.labels.values())
                counters[labels or sample.name] = sample.value
    return counters


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ([Route("/v1/run", overloaded)], {"/v1/run 5xx": 1, "posrec_refused_total": 1}),
        ([Route("/v1/run", disconnected)], {"/v1/run 4xx": 1}),
        ([], {"/v1/run 4xx": 1}),
    ],
    ids=["overloaded", "disconnected", "no route"],
)
def test_an_answer_is_counted_before_it_is_sent(
    routes: list[Route], expected: dict[str, float]
) -> None:
    metrics = Metrics(None)
    middleware = [Middleware(CountAnswers, metrics)]
    application: Any = Starlette(routes=routes, middleware=middleware)
    scope = {"type": "http", "method": "GET", "path": "/v1/run", "headers": []}
    counted_at: dict[str, dict[str, float]] = {}

    async def send(message: Message) -> None:
        counted_at[message["type"]] = counted(metrics)

    asyncio.run(application({**scope, "query_string": b""}, None, send))
    assert counted_at["http.response.start"] == expected


@pytest.mark.parametrize(
    "path",
    [
        "/V1/recommend",
        "/v1/./recommend",
        "/x/../v1/recommend",
        "/v1/recommend/",
        "/v1/recommend%2F",
        "/v1%2frecommend",
        "/v1/r%65commend",
        "/v1/recommend/b%61tch",
        "/v1/feedback/",
        "/v1/sessions/anna%2Fclick",
        "/v1/sessions/anna/cl%69ck",
        "//v1/recommend",
    ],
)
def test_paths_that_are_not_there(server: Server, path: str) -> None:
    assert ask(server, post(path, SESSION)).status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/sessions/%FE/click", 400),
        ("POST", "/v1/sessions/a%ED%A0%80/click", 400),  # a surrogate
        ("GET", "/v1/similar/%FF", 400),
        ("GET", "/v1/items?query=%FF", 400),
        ("GET", "/v1/similar/%EF%BF%BD", 404),  # the replacement character itself
        ("GET", "/v1/similar/%69%33", 200),
        ("GET", "/v1/items?query=%C3%BC", 200),
        ("GET", "/metrics/", 404),
        ("GET", "/metrics%2F", 404),
    ],
)
def test_an_address_that_is_not_utf8_is_refused(
    server: Server, method: str, path: str, status: int
) -> None:
    answer = ask(server, head(method, path, "Content-Length: 0"))
    assert answer.status == status
    assert (b"UTF-8" in answer.body) is (status == 400)


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/v1/run", "/v1/run"),
        ("/v1/sessions/anna/click", "/v1/sessions/.../click"),
        ("/v1/sessions/anna", "/v1/sessions/..."),
        ("/v1/sessions/x/anna", "..."),
        ("/v1/session/anna/click", "..."),
        ("/anna", "..."),
    ],
)
def test_no_id_of_a_session_is_logged_even_if_its_path_is_mistyped(
    path: str, logged: str
) -> None:
    counting = CountAnswers(Starlette(), Metrics(None), {"/v1/run"})
    assert counting.logged_path(path) == logged


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_run_no_other_scripts_and_are_shown_in_no_frame(
    server: Server, path: str
) -> None:
    """tests/browser shows that the pages work under this policy."""
    headers = server.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert "frame-ancestors 'none'" in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/", "/docs", "/v1/run", "/v1/items?limit=3"]
)
def test_head_is_answered_as_get_without_the_body(server: Server, path: str) -> None:
    expected = server.get(path)
    with Client(server) as client:
        client.sendall(head("HEAD", path) + head("GET", "/healthz"))
        answer = client.read("HEAD")
        assert answer.status == 200
        for name in ("content-type", "content-length"):
            assert answer.headers[name] == expected.headers[name]
        assert client.read().body == b"ok"  # the answer to the request behind it


def test_head_of_what_is_not_there_or_no_page(server: Server) -> None:
    assert server.ask("HEAD", "/nothing").status == 404
    assert server.ask("HEAD", "/v1/recommend").status == 405


def test_a_405_lists_the_allowed_methods(server: Server) -> None:
    for method in ("GET", "PUT", "DELETE", "TRACE"):
        answer = server.ask(method, "/v1/recommend")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


OF_TORCH = (
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (SystemError("error return without exception set"), 503),
        (RuntimeError(OF_TORCH), 503),
        (RuntimeError("shapes do not match"), 500),
    ],
    ids=["Python", "numpy", "torch", "another"],
)
def test_where_memory_runs_out_a_request_is_refused(
    error: Exception, status: int
) -> None:
    assert error_response(error).status_code == status
