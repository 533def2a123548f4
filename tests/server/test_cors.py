"""Web pages of other origins: what a browser asks before it sends a request, and what it may read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import Answer, Server, serving

pytest.importorskip("uvicorn")

SHOP, OTHER = "https://shop.example", "https://other.example"


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--allow-origin", SHOP, "--api-key", "secret", "--max-body", 1024) as server:
        yield server


def preflight(server: Server, path: str, origin: str, headers: str = "content-type,x-api-key") -> Answer:
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": headers}
    return server.ask("OPTIONS", path, Origin=origin, **asked)


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/explain", "/v1/items", "/v1/sessions/anna/click"])
def test_a_preflight_needs_no_key(server: Server, path: str) -> None:
    """A browser sends it without the key, and sends the request only if it is answered with these headers."""
    answer = preflight(server, path, SHOP)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"content-type", "x-api-key"} <= set(answer.headers["access-control-allow-headers"].split(","))
    assert int(answer.headers["access-control-max-age"]) > 0


def test_other_origins_are_refused(server: Server) -> None:
    answer = preflight(server, "/v1/recommend", OTHER)
    assert (answer.status, "--allow-origin" in answer.json()["error"]) == (400, True)
    assert "access-control-allow-origin" not in answer.headers
    body = {"session": ["i3"]}
    answer = server.ask("POST", "/v1/recommend", body, Origin=OTHER, X_API_Key="secret")
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (200, False)
    assert answer.headers["vary"] == "Origin"


def test_a_page_can_read_errors_too(server: Server) -> None:
    known = {"Origin": SHOP, "X_API_Key": "secret"}
    answers = [
        (200, server.ask("POST", "/v1/recommend", {"session": ["i3"]}, **known)),
        (200, server.ask("POST", "/v1/explain", {"session": ["i3"], "item": "i5"}, **known)),
        (401, server.ask("POST", "/v1/recommend", {"session": ["i3"]}, Origin=SHOP)),
        (401, server.ask("GET", "/v1/items", Origin=SHOP, X_API_Key="wrong")),
        (404, server.ask("GET", "/nothing", **known)),
        (413, server.ask("POST", "/v1/recommend", b" " * 1025, **known)),
        (415, server.ask("POST", "/v1/recommend", b"{}", Content_Type="text/xml", **known)),
        (422, server.ask("POST", "/v1/recommend", {"session": 7}, **known)),
    ]
    for status, answer in answers:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, SHOP)


def test_options_without_an_origin_still_needs_the_key(server: Server) -> None:
    assert server.ask("OPTIONS", "/v1/recommend").status == 401
    assert server.ask("OPTIONS", "/v1/recommend", X_API_Key="secret").status == 204


def test_every_origin(trained: Path) -> None:
    with serving(trained, "--allow-origin", "*") as server:
        assert preflight(server, "/v1/recommend", OTHER).headers["access-control-allow-origin"] == "*"
        answer = server.ask("POST", "/v1/recommend", {"session": ["i3"]}, Origin=OTHER)
        assert answer.headers["access-control-allow-origin"] == "*"
