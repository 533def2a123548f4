"""Limits on the head of a request: nobody needs a key to send one, so it must not cost memory or time."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.raw import SESSION, Client, ask, head, recommend
from tests.server.server_process import Server, serving

pytest.importorskip("uvicorn")

LIMIT, MOST = 32 << 10, 100  # bytes, headers
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--api-key", "open sesame") as server:
        yield server


def memory(server: Server) -> int:
    """The most memory that the server has had, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def send_much(client: Client, piece: bytes, times: int) -> None:
    with suppress(ConnectionError):  # the server may close before everything is sent
        for _ in range(times):
            client.sendall(piece)


def test_a_head_below_both_limits_is_accepted(server: Server) -> None:
    long = "X: " + "x" * (LIMIT - 200)
    assert ask(server, head("GET", "/healthz", long)).body == b"ok"
    many = [f"X-{number}: 1" for number in range(MOST - 1)]  # and Host
    assert ask(server, head("GET", "/healthz", *many)).body == b"ok"


@pytest.mark.parametrize("headers", [
    ["X: " + "x" * LIMIT], ["x" * LIMIT + ": 1"], [f"X-{number}: 1" for number in range(MOST)],
    ["X: " + "x" * 1000] * 33,
])  # fmt: skip
def test_a_head_above_a_limit_is_refused(server: Server, headers: list[str]) -> None:
    for path in ("/healthz", "/v1/recommend"):
        with Client(server) as client:
            client.sendall(head("GET", path, *headers))
            answer = client.read()
            assert (answer.status, answer.headers["connection"]) == (431, "close")
            assert "32,768 bytes" in answer.json()["error"]
            assert client.rest() == b""


def test_a_long_target_is_refused(server: Server) -> None:
    assert ask(server, head("GET", "/v1/items?query=" + "x" * LIMIT)).status == 431


def test_every_route_documents_that_a_head_may_be_too_large(server: Server) -> None:
    paths = ask(server, head("GET", "/openapi/openapi.json")).json()["paths"]
    routes = [route for methods in paths.values() for route in methods.values()]
    assert len(routes) == 11
    assert all("431" in route["responses"] for route in routes)


@pytest.mark.parametrize(("filters", "status"), [("x" * 10_000, 400), ("x" * 10_001, 422), ("%C3%9F" * 10_001, 431)])
def test_a_long_filter_is_refused_with_a_documented_status(server: Server, filters: str, status: int) -> None:
    """The last one is too long for the head too: a character of it has six bytes in an address."""
    answer = ask(server, head("GET", f"/v1/similar/i3?filter={filters}", "X-API-Key: open sesame"))
    assert answer.status == status
    document = ask(server, head("GET", "/openapi/openapi.json")).json()
    assert str(status) in document["paths"]["/v1/similar/{item}"]["get"]["responses"]


def test_the_second_request_of_a_connection_is_limited_too(server: Server) -> None:
    with Client(server) as client:
        client.sendall(head("GET", "/healthz") + head("GET", "/healthz", "X: " + "x" * LIMIT))
        assert client.read().body == b"ok"
        assert b" 200 " not in client.rest()  # 431, or nothing where the first was not answered yet
    assert ask(server, head("GET", "/healthz")).body == b"ok"


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the memory of a process can't be read here")
@pytest.mark.parametrize(("start", "piece"), [
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"a:\r\n" * 16_384),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"x" * 65_536),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"x" * 65_536),
    (b"GET /", b"x" * 65_536),
    (b"", b"\r\n" * 32_768),
    (head("POST", "/v1/recommend", CHUNKED) + b"2\r\n{}\r\n0\r\n", b"a:\r\n" * 16_384),
    (head("POST", "/v1/recommend", CHUNKED) + b"2\r\n{}\r\n0\r\nX: ", b"x" * 65_536),
    (head("POST", "/v1/recommend", CHUNKED) + b"2;x=", b"x" * 65_536),
], ids=["headers", "header", "name", "target", "empty lines", "trailers", "trailer", "chunk extension"])  # fmt: skip
def test_memory_does_not_grow_with_what_is_sent(server: Server, start: bytes, piece: bytes) -> None:
    assert ask(server, head("GET", "/healthz")).status == 200
    before = memory(server)
    with Client(server) as client:
        client.sendall(start)
        send_much(client, piece, 1024)  # 64 MB
    assert ask(server, head("GET", "/healthz")).status == 200
    assert memory(server) - before < 16 << 20


def test_trailers_are_not_headers(server: Server) -> None:
    """A key that comes after the body is ignored."""
    body = b"%x\r\n%s\r\n0\r\nX-API-Key: open sesame\r\n\r\n" % (len(SESSION), SESSION)
    assert ask(server, head("POST", "/v1/recommend", CHUNKED) + body).status == 401
    assert ask(server, head("POST", "/v1/recommend", CHUNKED, "X-API-Key: open sesame") + body).status == 200


def test_the_key_is_compared_once(server: Server) -> None:
    """Otherwise every header would be another guess: of a repeated header, the last counts."""
    wrong = [f"X-API-Key: guess {number}" for number in range(90)]
    assert ask(server, recommend("X-API-Key: open sesame", *wrong)).status == 401
    assert ask(server, recommend(*wrong, "X-API-Key: open sesame")).status == 200
    assert ask(server, recommend("Authorization: bearer open sesame")).status == 200
    assert ask(server, recommend("Authorization: Bearer open sesame", "X-API-Key: wrong")).status == 401


@pytest.mark.parametrize("request_line", [b"nonsense", b"GET / HTTP/9.9", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_what_is_not_http_is_answered_400(server: Server, request_line: bytes) -> None:
    answer = ask(server, request_line + b"\r\nHost: localhost\r\n\r\n")
    assert (answer.status, answer.json()) == (400, {"error": "the request is not valid HTTP"})


def test_a_complete_request_is_answered_before_the_invalid_one_behind_it(server: Server) -> None:
    with Client(server) as client:
        client.sendall(recommend("X-API-Key: open sesame") + b"nonsense\r\n\r\n")
        assert client.read().status == 200
        assert b" 200 " not in client.rest()
