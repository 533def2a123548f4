"""One connection: limits on the head of a request, what real clients do, and what is not HTTP."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.raw import SESSION, Client, ask, head, post, recommend
from tests.server.server_process import Server

RECOMMEND = "/v1/recommend"
MOST_HEADERS = 100
CHUNKED = "Transfer-Encoding: chunked"
CONTINUE = "Expect: 100-continue"
REST = SESSION[5:]
IN_CHUNKS = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (SESSION[:5], len(REST), REST)
# What Java's HttpClient and curl --http2 send.
H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
)
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: YQ==",
)


@pytest.fixture
def server(plain_server: Server) -> Server:
    return plain_server


def most_memory(server: Server) -> int:
    """That the worker has had so far, in bytes."""
    status = Path(f"/proc/{server.worker}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def test_a_head_below_both_limits_is_accepted(server: Server) -> None:
    assert ask(server, head("GET", "/healthz", "X: " + "x" * 32_000)).body == b"ok"
    many = [f"X-{number}: 1" for number in range(MOST_HEADERS - 1)]  # and Host
    assert ask(server, head("GET", "/healthz", *many)).body == b"ok"


@pytest.mark.parametrize(
    "headers",
    [
        ["X: " + "x" * 65_536],
        [f"X-{number}: 1" for number in range(MOST_HEADERS)],
        ["X: " + "x" * 5000] * 14,
    ],
    ids=["long", "many", "many long ones"],
)
def test_a_head_above_a_limit_is_refused(server: Server, headers: list[str]) -> None:
    with Client(server) as client:
        client.sendall(head("GET", "/healthz", *headers))
        answer = client.read()
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        assert client.rest() == b""


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(),
    reason="the memory of a process can't be read here",
)
@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (head("GET", "/healthz")[:-2], b"a:\r\n" * 16_384),
        (head("GET", "/healthz")[:-2] + b"X: ", b"x" * 65_536),
        (b"GET /", b"x" * 65_536),
        (b"", b"\r\n" * 32_768),
        (head("POST", RECOMMEND, CHUNKED) + b"2\r\n{}\r\n0\r\n", b"a:\r\n" * 16_384),
        (head("POST", RECOMMEND, CHUNKED) + b"2;x=", b"x" * 65_536),
        (b"", head("GET", "/healthz") * 1000),
    ],
    ids=[
        "headers",
        "header",
        "target",
        "empty lines",
        "trailers",
        "chunk extension",
        "unread answers",
    ],
)
def test_memory_does_not_grow_with_what_is_sent(
    server: Server, start: bytes, repeated: bytes
) -> None:
    assert server.get("/healthz").status == 200
    before = most_memory(server)
    with Client(server) as client:
        client.socket.settimeout(0.5)
        # The server closes, or stops reading.
        with suppress(ConnectionError, TimeoutError):
            client.sendall(start)
            for _ in range(512):
                client.sendall(repeated)
    assert server.get("/healthz").status == 200
    assert most_memory(server) - before < 12 << 20


@pytest.mark.parametrize(
    "request_line", [b"nonsense", b"GET / HTTP/9.9", b"\x16\x03\x01\x02\x00\x01\x00"]
)
def test_what_is_not_http_is_answered_400(server: Server, request_line: bytes) -> None:
    assert ask(server, request_line + b"\r\nHost: localhost\r\n\r\n").status == 400


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_upgrade_is_ignored(server: Server, upgrade: tuple[str, ...]) -> None:
    """The body is read and answered in HTTP/1.1, also in chunks, and so is the next request."""
    requests = [
        recommend(*upgrade),
        head("POST", RECOMMEND, CHUNKED, *upgrade) + IN_CHUNKS,
        recommend(),
    ]
    with Client(server) as client:
        client.sendall(b"".join(requests))
        answers = [client.read().json()["items"] for _ in requests]
    assert answers == [answers[-1]] * 3


@pytest.mark.parametrize(
    "headers",
    [
        ("Transfer-Encoding: chunked, gzip",),
        ("Transfer-Encoding: identity",),
        (f"Content-Length: {len(SESSION)}", f"Content-Length: {len(SESSION) + 1}"),
        ("Content-Length: -1",),
        ("Content-Length: +5",),
    ],
)
def test_framing_that_proxies_may_read_otherwise_is_refused(
    server: Server, headers: tuple[str, ...]
) -> None:
    answer = ask(server, head("POST", RECOMMEND, *headers) + IN_CHUNKS)
    assert (answer.status, answer.headers["connection"]) == (400, "close")


def test_a_length_beside_chunks_ends_the_connection(server: Server) -> None:
    """A proxy that believes the length sees the rest as another request, so nothing after it may be
    answered."""
    ambiguous = head("POST", RECOMMEND, CHUNKED, "Content-Length: 3") + IN_CHUNKS
    with Client(server) as client:
        client.sendall(ambiguous + head("GET", "/healthz"))
        assert client.read().headers["connection"] == "close"
        assert client.rest() == b""


def test_a_body_that_would_be_too_large_is_refused_before_it_is_sent(
    server: Server,
) -> None:
    too_large = head("POST", RECOMMEND, f"Content-Length: {3 << 20}", CONTINUE)
    assert ask(server, too_large).status == 413
    request = post(RECOMMEND, SESSION, CONTINUE)
    with Client(server) as client:
        client.sendall(request.removesuffix(SESSION))
        # http.client skips this answer, so it is looked at before.
        assert client.received.peek(12).startswith(b"HTTP/1.1 100")
        client.sendall(SESSION)
        assert client.read().status == 200


def test_http_1_0_gets_no_100_continue(server: Server) -> None:
    request = recommend(CONTINUE).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with Client(server) as client:
        client.sendall(request)
        assert client.rest().startswith(b"HTTP/1.0 200 ")


@pytest.mark.parametrize("path", ["http://localhost", "http://localhost/healthz"])
def test_a_path_with_scheme_and_host_is_understood(server: Server, path: str) -> None:
    assert ask(server, head("GET", path)).status == 200


def test_complete_requests_before_a_wrong_one_are_answered(server: Server) -> None:
    with Client(server) as client:
        client.sendall(recommend() * 3 + b"nonsense\r\n\r\n")
        assert [client.read().status for _ in range(4)] == [200, 200, 200, 400]
        assert client.rest() == b""


def test_too_few_files(trained: Path) -> None:
    line = f"ulimit -n 100; exec {sys.executable} -m posrec serve {trained} --port 0"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "100 files" in done.stderr
