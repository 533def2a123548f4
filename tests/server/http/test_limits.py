"""One connection: limits on the head of a request, what real clients do, and more connections than files."""

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw import SESSION, Client, ask, head, recommend
from tests.server.server_process import Server, serving, until

pytest.importorskip("uvicorn")

LIMIT, MOST = 32 << 10, 100  # bytes, headers
CHUNKED = "Transfer-Encoding: chunked"
# What Java's HttpClient and curl --http2 send.
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YQ==")
FILES, OWN = 256, 128
SHOP = "https://shop.example"


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


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


@pytest.mark.parametrize(
    "headers",
    [
        ["X: " + "x" * LIMIT],
        ["x" * LIMIT + ": 1"],
        [f"X-{number}: 1" for number in range(MOST)],
        ["X: " + "x" * 1000] * 33,
    ],
)
def test_a_head_above_a_limit_is_refused(server: Server, headers: list[str]) -> None:
    for path in ("/healthz", "/v1/recommend"):
        with Client(server) as client:
            client.sendall(head("GET", path, *headers))
            answer = client.read()
            assert (answer.status, answer.headers["connection"]) == (431, "close")
            assert "32,768 bytes" in answer.json()["error"]
            assert client.rest() == b""


def test_the_second_request_of_a_connection_is_limited_too(server: Server) -> None:
    with Client(server) as client:
        client.sendall(head("GET", "/healthz") + head("GET", "/healthz", "X: " + "x" * LIMIT))
        assert client.read().body == b"ok"
        assert b" 200 " not in client.rest()  # 431, or nothing where the first was not answered yet
    assert ask(server, head("GET", "/healthz")).body == b"ok"


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the memory of a process can't be read here")
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"a:\r\n" * 16_384),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"x" * 65_536),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"x" * 65_536),
        (b"GET /", b"x" * 65_536),
        (b"", b"\r\n" * 32_768),
        (head("POST", "/v1/recommend", CHUNKED) + b"2\r\n{}\r\n0\r\n", b"a:\r\n" * 16_384),
        (head("POST", "/v1/recommend", CHUNKED) + b"2\r\n{}\r\n0\r\nX: ", b"x" * 65_536),
        (head("POST", "/v1/recommend", CHUNKED) + b"2;x=", b"x" * 65_536),
    ],
    ids=["headers", "header", "name", "target", "empty lines", "trailers", "trailer", "chunk extension"],
)
def test_memory_does_not_grow_with_what_is_sent(server: Server, start: bytes, piece: bytes) -> None:
    assert ask(server, head("GET", "/healthz")).status == 200
    before = memory(server)
    with Client(server) as client:
        client.sendall(start)
        send_much(client, piece, 1024)  # 64 MB
    assert ask(server, head("GET", "/healthz")).status == 200
    assert memory(server) - before < 16 << 20


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the memory of a process can't be read here")
def test_pipelined_requests_are_read_only_as_they_are_answered(server: Server) -> None:
    assert ask(server, head("GET", "/healthz")).status == 200
    before, logged = memory(server), len(server.log)
    with Client(server) as client:
        client.socket.settimeout(0.5)
        with suppress(TimeoutError):  # nothing is read, so the server stops reading too
            client.sendall(head("GET", "/healthz") * 200_000)
        assert client.read("GET").body == b"ok"
    assert ask(server, head("GET", "/healthz")).status == 200
    assert memory(server) - before < 16 << 20
    assert server.log[logged:] == []


@pytest.mark.parametrize("request_line", [b"nonsense", b"GET / HTTP/9.9", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_what_is_not_http_is_answered_400(server: Server, request_line: bytes) -> None:
    answer = ask(server, request_line + b"\r\nHost: localhost\r\n\r\n")
    assert (answer.status, answer.json()) == (400, {"error": "the request is not valid HTTP"})


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


@pytest.mark.parametrize("codings", [("gzip, chunked",), ("gzip", "chunked"), ("chunked, gzip",), ("identity",)])
def test_other_transfer_codings_are_refused(server: Server, codings: tuple[str, ...]) -> None:
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SESSION), SESSION)
    answer = ask(server, head("POST", "/v1/recommend", *(f"Transfer-Encoding: {one}" for one in codings)) + body)
    assert answer.status == 400


def test_a_body_that_would_be_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    expecting = head("POST", "/v1/recommend", f"Content-Length: {3 << 20}", "Expect: 100-continue")
    assert ask(server, expecting).status == 413
    with Client(server) as client:
        client.sendall(head("POST", "/v1/recommend", f"Content-Length: {len(SESSION)}", "Expect: 100-continue"))
        assert client.received.peek(12).startswith(b"HTTP/1.1 100")  # which http.client skips
        client.sendall(SESSION)
        assert client.read().status == 200


def test_connect_is_refused(server: Server) -> None:
    assert ask(server, b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 400
    assert ask(server, b"CONNECT /v1/recommend HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 405


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


@contextmanager
def limited(files: int) -> Iterator[None]:
    """What is started meanwhile may open this many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    started = subprocess.Popen.__init__

    def start(self: object, *arguments: object, **options: object) -> None:
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        started(self, *arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", start)
        yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.fixture(scope="module")
def crowded(trained: Path) -> Iterator[Server]:
    """A server that may open few files."""
    with limited(FILES), serving(trained, "--allow-origin", SHOP, forked=False) as server:
        yield server


def test_silent_connections_make_room(crowded: Server) -> None:
    assert crowded.said("listening")[0]["connections"] == FILES - OWN
    with ExitStack() as stack:
        for _ in range(700):
            stack.enter_context(socket.create_connection(crowded.address, timeout=120))
            if _ % 50 == 0:
                assert crowded.recommend("i3").status == 200
        assert [crowded.recommend("i3").status for _ in range(20)] == [200] * 20
        assert crowded.open_files() < FILES


def test_a_connection_in_use_is_not_closed(crowded: Server) -> None:
    """Silent connections are closed first, then those that wait for the next request."""
    with Client(crowded) as used, ExitStack() as stack:
        used.sendall(recommend())
        assert used.read().status == 200
        for _ in range(FILES):
            stack.enter_context(socket.create_connection(crowded.address, timeout=120))
        assert crowded.recommend("i3").status == 200
        used.sendall(recommend())
        assert used.read().status == 200


def test_where_none_is_idle_the_next_gets_503(crowded: Server) -> None:
    with ExitStack() as later:
        with ExitStack() as stack:
            for _ in range(FILES - OWN):  # each has begun a request
                busy = stack.enter_context(Client(crowded))
                busy.sendall(recommend()[:20])
            answer = ask(crowded, recommend(f"Origin: {SHOP}"))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "too many connections" in answer.json()["error"]
            assert answer.headers["access-control-allow-origin"] == SHOP  # a page can read it
            patient = later.enter_context(Client(crowded))  # sends its request once there is room
        until(lambda: crowded.open_files() < FILES - OWN)
        patient.sendall(recommend())
        assert patient.read().status == 200


def test_files_that_run_out_are_logged(crowded: Server) -> None:
    """The limit may be lowered from outside, and other users may have all files of the machine."""
    _, most = resource.prlimit(crowded.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(crowded.process.pid, resource.RLIMIT_NOFILE, (3, most))
    until(lambda: [line for line in crowded.log if line["message"].startswith("no more files can be opened")])
    resource.prlimit(crowded.process.pid, resource.RLIMIT_NOFILE, (most, most))
    assert crowded.recommend("i3").status == 200


def test_too_few_files(trained: Path) -> None:
    line = f"ulimit -n 100; exec {sys.executable} -m posrec serve {trained} --port 0"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "may open 100 files" in done.stderr) == (2, True), done.stderr
