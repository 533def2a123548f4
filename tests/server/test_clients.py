"""What real clients do: ask for an upgrade, for the head alone, or close their sending side after the request."""

import json
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.raw import SESSION, Client, ask, head, recommend
from tests.server.server_process import Server

pytest.importorskip("uvicorn")

# What Java's HttpClient and curl --http2 send.
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YQ==")


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


def recommended(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without its id, which is another one each time."""
    assert answer["id"]
    return {name: value for name, value in answer.items() if name != "id"}


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_upgrade_is_ignored(server: Server, upgrade: tuple[str, ...]) -> None:
    """The body is read and answered in HTTP/1.1, also where it comes later, in chunks, or with more requests behind."""
    expected = recommended(ask(server, recommend()).json())
    chunked = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (SESSION[:5], len(SESSION) - 5, SESSION[5:])
    whole, in_chunks = recommend(*upgrade), head("POST", "/v1/recommend", "Transfer-Encoding: chunked", *upgrade)
    for request in (whole, in_chunks + chunked):
        answer = ask(server, request)
        assert (answer.status, recommended(answer.json())) == (200, expected)
        with Client(server) as client:
            for place in range(0, len(request), 7):
                client.sendall(request[place : place + 7])
            assert recommended(client.read().json()) == expected
            client.sendall(request + recommend() + head("GET", "/healthz", *upgrade) + request)
            answers = [client.read().body for _ in range(4)]
            assert answers.pop(2) == b"ok"
            assert [recommended(json.loads(answer)) for answer in answers] == [expected] * 3


def test_an_upgrade_with_an_invalid_body(server: Server) -> None:
    for headers in (("Transfer-Encoding: gzip",), ("Transfer-Encoding: chunked", "Expect: 100-continue")):
        assert ask(server, head("POST", "/v1/recommend", *headers, *H2C) + b"zz\r\n").status == 400
    assert not [line for line in server.log if line["level"] == "error"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_http2(server: Server) -> None:
    line = ["curl", "-s", "--http2", "--max-time", "60", f"http://127.0.0.1:{server.port}/v1/recommend", "-d", SESSION]
    done = subprocess.run(line, capture_output=True, check=True)
    assert recommended(json.loads(done.stdout)) == recommended(server.recommend("i3", k=2).json())


@pytest.mark.parametrize(
    "path", ["/v1/recommend/", "/v1/recommend?x=1", "/v1%2Frecommend", "/v1/recommend//", "/v1//recommend"]
)
def test_other_ways_to_write_the_path(server: Server, path: str) -> None:
    request = head("POST", path, f"Content-Length: {len(SESSION)}") + SESSION
    found, expected = (recommended(ask(server, one).json()) for one in (request, recommend()))
    assert found == expected


@pytest.mark.parametrize("path", ["/V1/recommend", "/v1/./recommend", "/x/../v1/recommend"])
def test_paths_that_are_not_there(server: Server, path: str) -> None:
    assert ask(server, head("POST", path, f"Content-Length: {len(SESSION)}") + SESSION).status == 404


def test_connect_is_refused(server: Server) -> None:
    assert ask(server, b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 400
    assert ask(server, b"CONNECT /v1/recommend HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 405


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


def test_a_client_that_closes_its_sending_side_gets_its_answers(server: Server) -> None:
    expected = recommended(ask(server, recommend()).json())
    explain = json.dumps({"session": ["i3", "i4"], "item": "i5"}).encode()
    slow = head("POST", "/v1/explain", f"Content-Length: {len(explain)}") + explain
    for requests in ([recommend()], [recommend()] * 5, [slow, recommend()]):
        with Client(server) as client:
            client.sendall(b"".join(requests))
            client.shutdown(socket.SHUT_WR)
            answers = [client.read() for _ in requests]
            assert {answer.status for answer in answers} == {200}
            assert recommended(answers[-1].json()) == expected
            assert client.rest() == b""


def test_many_explanations_wait_for_their_turn(server: Server) -> None:
    """They are computed one after the other, and recommendations go on meanwhile."""
    body = {"session": ["i3", "i4", "i9"], "item": "i5"}
    with ThreadPoolExecutor(64) as clients:
        asked = [clients.submit(server.ask, "POST", "/v1/explain", body) for _ in range(128)]
        assert [server.recommend("i3").status for _ in range(20)] == [200] * 20
        assert {one.result().status for one in asked} == {200}


@pytest.mark.parametrize("last", [recommend()[:-1], recommend()[:30], b"nonsense\r\n\r\n"])
def test_complete_requests_before_a_wrong_one_are_answered(server: Server, last: bytes) -> None:
    errors = len([line for line in server.log if line["level"] == "error"])
    for number in (1, 3):
        with Client(server) as client:
            client.sendall(recommend() * number + last)
            client.shutdown(socket.SHUT_WR)
            assert [client.read().status for _ in range(number)] == [200] * number
            assert b" 200 " not in client.rest()
    assert len([line for line in server.log if line["level"] == "error"]) == errors


def test_an_incomplete_request_is_not_answered(server: Server) -> None:
    for part in (recommend()[:-1], head("POST", "/v1/recommend")[:20], b""):
        with Client(server) as client:
            client.sendall(part)
            client.shutdown(socket.SHUT_WR)
            assert client.rest() == b""
