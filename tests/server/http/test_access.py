"""Who may ask: the Host header, the API key, and web pages of other origins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.raw import SESSION, ask, head, recommend
from tests.server.server_process import Answer, Server, serving

pytest.importorskip("granian")

LOCAL = (
    "localhost",
    "LOCALHOST:8000",
    "127.0.0.1",
    "127.0.0.1:1",
    "[::1]:8000",
    "localhost.",
)
STRANGE = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    "[::1",
    "192.0.2.1",
)
SHOP = "https://shop.example"
OTHER = "https://other.example"
JSON = "Content-Type: application/json"
KEY = "X-API-Key: open sesame"


@pytest.fixture(scope="module")
def guarded(trained: Path) -> Iterator[Server]:
    options = ("--allow-origin", SHOP, "--max-body", 1024)
    with serving(trained, *options, key="open sesame") as server:
        yield server


@pytest.fixture(scope="module")
def writable(
    trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with serving(
        trained,
        "--allow-origin",
        SHOP,
        "--feedback",
        tmp_path_factory.mktemp("feedback"),
    ) as server:
        yield server


def statuses(server: Server, hosts: tuple[str, ...]) -> set[int]:
    return {ask(server, recommend(host=host)).status for host in hosts}


def test_a_local_server_answers_for_local_names_alone(plain_server: Server) -> None:
    assert statuses(plain_server, LOCAL) == {200}
    for host in STRANGE:
        answer = ask(plain_server, recommend(host=host))
        assert (answer.status, "--allow-host" in answer.json()["error"]) == (
            400,
            True,
        ), host
        assert ask(plain_server, head("GET", "/", host=host)).status == 400


def test_http_1_1_needs_one_host(plain_server: Server) -> None:
    assert ask(plain_server, recommend(host=None)).status == 400
    assert ask(plain_server, recommend("Host: evil.example")).status == 400
    assert (
        ask(plain_server, recommend("Host: localhost", host="evil.example")).status
        == 400
    )
    assert (
        ask(plain_server, head("GET", "/healthz", host=None, version="1.0")).status
        == 200
    )


def test_a_server_for_other_machines_answers_for_every_name(trained: Path) -> None:
    with serving(trained, "--host", "0.0.0.0") as server:
        assert statuses(server, (*LOCAL, "shop.example", "10.1.2.3:8000")) == {200}


@pytest.mark.slow
def test_more_names_can_be_allowed(trained: Path) -> None:
    with serving(
        trained, "--allow-host", "Shop.example", "--allow-host", "10.1.2.3"
    ) as server:
        assert statuses(
            server, (*LOCAL, "shop.example", "shop.EXAMPLE:443", "10.1.2.3")
        ) == {200}
        assert statuses(server, STRANGE) == {400}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([KEY], 200),
        (["X-API-Key: wrong"], 401),
        (["Authorization: bearer open sesame"], 200),
        (["Authorization: Bearer wrong"], 401),
        (["Authorization: Digest open sesame"], 401),
        (["Authorization: Bearer open sesame", "X-API-Key: wrong"], 401),
        # The key is compared once, otherwise every header would be another guess.
        ([KEY, *["X-API-Key: guess"] * 90], 401),
        ([*["X-API-Key: guess"] * 90, KEY], 401),
    ],
    ids=lambda value: "; ".join(value[:2]) if isinstance(value, list) else None,
)
def test_the_key_may_be_in_either_header(
    guarded: Server, headers: list[str], status: int
) -> None:
    assert ask(guarded, recommend(*headers)).status == status


def test_a_key_that_comes_after_the_body_is_ignored(guarded: Server) -> None:
    chunked = "Transfer-Encoding: chunked"
    trailer = KEY.encode()
    body = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(SESSION), SESSION, trailer)
    assert ask(guarded, head("POST", "/v1/recommend", chunked) + body).status == 401
    assert (
        ask(guarded, head("POST", "/v1/recommend", chunked, KEY) + body).status == 200
    )


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json"]
)
def test_pages_and_probes_need_no_key(guarded: Server, path: str) -> None:
    assert ask(guarded, head("GET", path)).status == 200
    assert ask(guarded, head("GET", "/metrics")).status == 401


@pytest.mark.parametrize(
    ("path", "body", "success"),
    [
        ("/v1/feedback", b'{"answer": "a", "event": "shown", "items": ["i3"]}', 202),
        ("/v1/sessions/a/click", b'{"item": "i3"}', 200),
        ("/v1/sessions/a", b"", 204),
    ],
)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((JSON,), None),
        ((JSON, "Origin: http://localhost"), None),  # a page of the server itself
        ((JSON, "Origin: https://LOCALHOST"), None),  # behind a proxy that adds TLS
        ((JSON, f"Origin: {SHOP}"), None),
        ((JSON, f"Origin: {OTHER}"), 403),
        ((JSON, "Origin: null"), 403),
        ((JSON, "Origin: "), 403),
        ((JSON, "Origin: http://localhost:9000"), 403),
        (("Content-Type: text/plain",), 415),
        (("Content-Type: application/x-www-form-urlencoded",), 415),
        ((), 415),
    ],
    ids=str,
)
def test_only_pages_of_allowed_origins_write(
    writable: Server,
    path: str,
    body: bytes,
    success: int,
    headers: tuple[str, ...],
    status: int | None,
) -> None:
    """A session is deleted without a body, whose type would be checked."""
    method, allowed = ("POST", ()) if body else ("DELETE", (None, 415))
    answer = ask(
        writable, head(method, path, f"Content-Length: {len(body)}", *headers) + body
    )
    assert answer.status == (success if status in (None, *allowed) else status), (
        answer.body
    )


def test_without_a_host_no_page_writes(writable: Server) -> None:
    body = b'{"item": "i3"}'
    lines = head(
        "POST",
        "/v1/sessions/a/click",
        f"Content-Length: {len(body)}",
        JSON,
        "Origin: null",
        host=None,
        version="1.0",
    )
    assert ask(writable, lines + body).status == 403


def test_a_session_is_deleted_only_with_the_key(guarded: Server) -> None:
    assert ask(guarded, head("DELETE", "/v1/sessions/a")).status == 401
    assert ask(guarded, head("DELETE", "/v1/sessions/a", KEY)).status == 204
    assert ask(guarded, head("GET", "/v1/sessions/a", KEY)).headers["allow"] == "DELETE"


def preflight(server: Server, path: str, origin: str) -> Answer:
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "content-type,x-api-key",
    }
    return server.ask("OPTIONS", path, Origin=origin, **asked)


@pytest.mark.parametrize(
    "path", ["/v1/recommend", "/v1/items", "/v1/sessions/anna/click"]
)
def test_a_preflight_needs_no_key(guarded: Server, path: str) -> None:
    answer = preflight(guarded, path, SHOP)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert {"POST", "DELETE"} <= {
        *answer.headers["access-control-allow-methods"].split(", ")
    }
    assert {"content-type", "x-api-key"} <= set(
        answer.headers["access-control-allow-headers"].split(",")
    )
    assert int(answer.headers["access-control-max-age"]) > 0


def test_options_without_an_origin_still_needs_the_key(guarded: Server) -> None:
    assert ask(guarded, head("OPTIONS", "/v1/recommend")).status == 401
    assert ask(guarded, head("OPTIONS", "/v1/recommend", KEY)).status == 405


def test_other_origins_are_refused(guarded: Server, plain_server: Server) -> None:
    answer = preflight(guarded, "/v1/recommend", OTHER)
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers
    answer = ask(guarded, recommend(KEY, f"Origin: {OTHER}"))
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (
        200,
        False,
    )
    assert (
        "access-control-allow-origin"
        not in ask(plain_server, recommend(f"Origin: {SHOP}")).headers
    )


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (recommend(KEY, f"Origin: {SHOP}"), 200),
        (recommend(f"Origin: {SHOP}"), 401),
        (head("GET", "/nothing", KEY, f"Origin: {SHOP}"), 404),
        (
            head(
                "POST", "/v1/recommend", KEY, f"Origin: {SHOP}", "Content-Length: 1025"
            )
            + b" " * 1025,
            413,
        ),
        (recommend(KEY, f"Origin: {SHOP}", "Content-Type: text/xml"), 415),
        (
            head("POST", "/v1/explain", KEY, f"Origin: {SHOP}", "Content-Length: 2")
            + b"{}",
            422,
        ),
        (
            head(
                "POST",
                "/v1/recommend",
                KEY,
                f"Origin: {SHOP}",
                "Transfer-Encoding: chunked",
            )
            + b"zz\r\n",
            400,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value[:24].decode(),
)
def test_a_page_can_read_errors_too(
    guarded: Server, request_bytes: bytes, status: int
) -> None:
    answer = ask(guarded, request_bytes)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (
        status,
        SHOP,
    )


def test_every_origin(trained: Path) -> None:
    with serving(trained, "--allow-origin", "*") as server:
        assert (
            preflight(server, "/v1/recommend", OTHER).headers[
                "access-control-allow-origin"
            ]
            == "*"
        )
        assert (
            ask(server, recommend(f"Origin: {OTHER}")).headers[
                "access-control-allow-origin"
            ]
            == "*"
        )
