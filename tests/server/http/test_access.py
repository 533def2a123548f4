"""Who may ask: the Host header, the API key, and web pages of other origins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.asking import Answer
from tests.server.raw import SESSION, ask, head, post, recommend
from tests.server.server_process import Server, serving

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
FROM_SHOP = f"Origin: {SHOP}"
FROM_OTHER = f"Origin: {OTHER}"
JSON = "Content-Type: application/json"
KEY = "X-API-Key: open sesame"
CHUNKED = "Transfer-Encoding: chunked"
ALLOWED_ORIGIN = "access-control-allow-origin"
RECOMMEND = "/v1/recommend"


@pytest.fixture(scope="module")
def guarded(trained: Path) -> Iterator[Server]:
    options = ("--allow-origin", SHOP, "--max-body", 1024)
    with serving(trained, *options, key="open sesame") as server:
        yield server


@pytest.fixture(scope="module")
def writable(
    trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("feedback")
    options = ("--allow-origin", SHOP, "--feedback", folder)
    with serving(trained, *options) as server:
        yield server


@pytest.fixture(scope="module")
def public(trained: Path) -> Iterator[Server]:
    """For other machines, and for pages of every origin."""
    with serving(trained, "--host", "0.0.0.0", "--allow-origin", "*") as server:
        yield server


def statuses(server: Server, *hosts: str) -> set[int]:
    return {ask(server, recommend(host=host)).status for host in hosts}


def test_a_local_server_answers_for_local_names_alone(plain_server: Server) -> None:
    assert statuses(plain_server, *LOCAL) == {200}
    for host in STRANGE:
        answer = ask(plain_server, recommend(host=host))
        assert answer.status == 400, host
        assert "--allow-host" in answer.error
        assert ask(plain_server, head("GET", "/", host=host)).status == 400


def test_http_1_1_needs_one_host(plain_server: Server) -> None:
    two_hosts = recommend("Host: localhost", host="evil.example")
    for wrong in (recommend(host=None), recommend("Host: evil.example"), two_hosts):
        assert ask(plain_server, wrong).status == 400
    http_1_0 = head("GET", "/healthz", host=None, version="1.0")
    assert ask(plain_server, http_1_0).status == 200


def test_a_server_for_other_machines_answers_for_every_name(public: Server) -> None:
    assert statuses(public, *LOCAL, "shop.example", "10.1.2.3:8000") == {200}


@pytest.mark.slow
def test_more_names_can_be_allowed(trained: Path) -> None:
    options = ("--allow-host", "Shop.example", "--allow-host", "10.1.2.3")
    with serving(trained, *options) as server:
        names = (*LOCAL, "shop.example", "shop.EXAMPLE:443", "10.1.2.3")
        assert statuses(server, *names) == {200}
        assert statuses(server, *STRANGE) == {400}


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
    trailer = KEY.encode()
    body = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(SESSION), SESSION, trailer)
    assert ask(guarded, head("POST", RECOMMEND, CHUNKED) + body).status == 401
    assert ask(guarded, head("POST", RECOMMEND, CHUNKED, KEY) + body).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json"]
)
def test_pages_and_probes_need_no_key(guarded: Server, path: str) -> None:
    assert guarded.get(path).status == 200


def test_metrics_need_the_key(guarded: Server) -> None:
    assert guarded.get("/metrics").status == 401


@pytest.mark.parametrize(
    ("path", "body", "success"),
    [
        ("/v1/feedback", b'{"answer": "a", "event": "shown", "items": ["i3"]}', 202),
        ("/v1/sessions/a/click", b'{"item": "i3"}', 200),
        ("/v1/sessions/a", b"", 204),
    ],
)
@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ((JSON,), None),
        ((JSON, "Origin: http://localhost"), None),  # a page of the server itself
        ((JSON, "Origin: https://LOCALHOST"), None),  # behind a proxy that adds TLS
        ((JSON, FROM_SHOP), None),
        ((JSON, FROM_OTHER), 403),
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
    refusal: int | None,
) -> None:
    if body:
        answer = ask(writable, post(path, body, *headers))
    else:
        answer = ask(writable, head("DELETE", path, "Content-Length: 0", *headers))
        if refusal == 415:  # there is no body whose type would be checked
            refusal = None
    assert answer.status == (refusal or success), answer.body


def test_without_a_host_no_page_writes(writable: Server) -> None:
    body = b'{"item": "i3"}'
    headers = (f"Content-Length: {len(body)}", JSON, "Origin: null")
    click = head("POST", "/v1/sessions/a/click", *headers, host=None, version="1.0")
    assert ask(writable, click + body).status == 403


def test_a_session_is_deleted_only_with_the_key(guarded: Server) -> None:
    assert ask(guarded, head("DELETE", "/v1/sessions/a")).status == 401
    assert ask(guarded, head("DELETE", "/v1/sessions/a", KEY)).status == 204
    assert ask(guarded, head("GET", "/v1/sessions/a", KEY)).headers["allow"] == "DELETE"


def preflight(server: Server, path: str, origin: str) -> Answer:
    headers = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "content-type,x-api-key",
    }
    return server.ask("OPTIONS", path, Origin=origin, **headers)


@pytest.mark.parametrize(
    "path", ["/v1/recommend", "/v1/items", "/v1/sessions/anna/click"]
)
def test_a_preflight_needs_no_key(guarded: Server, path: str) -> None:
    answer = preflight(guarded, path, SHOP)
    assert answer.status == 200
    headers = answer.headers
    assert headers[ALLOWED_ORIGIN] == SHOP
    methods = headers["access-control-allow-methods"].split(", ")
    assert {"POST", "DELETE"} <= set(methods)
    names = headers["access-control-allow-headers"].split(",")
    assert {"content-type", "x-api-key"} <= set(names)
    assert int(headers["access-control-max-age"]) > 0


def test_options_without_an_origin_still_needs_the_key(guarded: Server) -> None:
    assert ask(guarded, head("OPTIONS", RECOMMEND)).status == 401
    assert ask(guarded, head("OPTIONS", RECOMMEND, KEY)).status == 405


def test_other_origins_are_refused(guarded: Server, plain_server: Server) -> None:
    refused = preflight(guarded, RECOMMEND, OTHER)
    assert refused.status == 400
    # The request itself is answered, but a browser does not show the answer to the page.
    unreadable = ask(guarded, recommend(KEY, FROM_OTHER))
    assert unreadable.status == 200
    without_the_option = ask(plain_server, recommend(FROM_SHOP))
    for answer in (refused, unreadable, without_the_option):
        assert ALLOWED_ORIGIN not in answer.headers


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (recommend(KEY, FROM_SHOP), 200),
        (recommend(FROM_SHOP), 401),
        (head("GET", "/nothing", KEY, FROM_SHOP), 404),
        (post(RECOMMEND, b" " * 1025, KEY, FROM_SHOP), 413),
        (recommend(KEY, FROM_SHOP, "Content-Type: text/xml"), 415),
        (post("/v1/explain", b"{}", KEY, FROM_SHOP), 422),
        (head("POST", RECOMMEND, KEY, FROM_SHOP, CHUNKED) + b"zz\r\n", 400),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value[:24].decode(),
)
def test_a_page_can_read_errors_too(
    guarded: Server, request_bytes: bytes, status: int
) -> None:
    answer = ask(guarded, request_bytes)
    assert answer.status == status
    assert answer.headers[ALLOWED_ORIGIN] == SHOP


def test_every_origin(public: Server) -> None:
    assert preflight(public, RECOMMEND, OTHER).headers[ALLOWED_ORIGIN] == "*"
    assert ask(public, recommend(FROM_OTHER)).headers[ALLOWED_ORIGIN] == "*"
