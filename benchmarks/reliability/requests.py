"""Malformed requests, requests of Java's client, and very slow ones."""

import random
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.reliability.paced_client import head, post
from benchmarks.reliability.served import (
    Figures,
    Steps,
    attacked,
    make_run,
    open_files,
    repeated,
    require_program,
)
from tests.server.server_process import until

DOCUMENTED = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 503}
MOST_GROWTH_MB = 64  # of memory, over all requests
JAVA = Path(__file__).with_name("JavaClient.java")
JAVA_REQUESTS = 480
SLOW = ("heads", "bodies", "readers")
SLOW_CLIENTS = 300
ESTABLISHED = 1  # the state of a connection, the first byte of TCP_INFO
MOST_SILENCE = 0.5  # seconds
CLICK = "/v1/sessions/a/click"
PATHS = (
    "/v1/recommend",
    "/v1/explain",
    "/v1/items",
    "/v1/run",
    CLICK,
    "/healthz",
    "/",
    "/nothing",
    "*",
)
METHODS = (
    "GET",
    "POST",
    "PUT",
    "HEAD",
    "OPTIONS",
    "DELETE",
    "TRACE",
    "CONNECT",
    "PATCH",
    "BREW",
    "post",
    "",
)
FIELDS = (
    "session",
    "k",
    "exclude",
    "diversify",
    "explore",
    "allow",
    "deny",
    "session_id",
    "item",
    "other",
)
VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "i3",
    "x" * 2000,
    "\ud800",
    [],
    {},
    [[]],
    ["i3"],
    [None],
    {"a": 1},
)
LENGTHS = (
    "-1",
    "1e3",
    "0x10",
    "999999999999",
    "5, 5",
    "",
    "5\r\nContent-Length: 6",
    " 7 ",
)
HEADERS = (
    "Upgrade: h2c",
    "Connection: Upgrade",
    "Connection: close",
    "Expect: 100-continue",
    "Host: evil.example",
    "Transfer-Encoding: gzip",
    "Content-Type: text/xml",
    "Origin: https://evil.example",
    "X-API-Key: x",
    "Authorization: Bearer",
    "Range: bytes=0-1",
    "Content-Encoding: gzip",
    "Trailer: X",
    ": empty",
    "no colon",
    "X:\x00",
    "Accept: */*;q=nonsense",
    "Cookie: " + "a=b;" * 500,
)
CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\n",
    b"fffffffff\r\n",
    b"5;" + b"x" * 50_000 + b"\r\nhello\r\n",
    b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"g\r\n",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"",
)


def mutated(draw: random.Random) -> bytes:
    request = bytearray(post(draw.choice(PATHS), {"session": ["i3", "i4"], "k": 5}))
    for _ in range(draw.randint(1, 8)):
        start = draw.randrange(len(request))
        removed = draw.choice((0, 1, draw.randint(1, 20)))
        inserted = draw.choice((0, 1, draw.randint(1, 20)))
        request[start : start + removed] = draw.randbytes(inserted)
    return bytes(request)


def wrong_fields(draw: random.Random) -> bytes:
    body = {draw.choice(FIELDS): draw.choice(VALUES) for _ in range(draw.randint(0, 5))}
    return post(draw.choice(PATHS[:5]), body)


def odd_head(draw: random.Random) -> bytes:
    path = draw.choice(PATHS) + draw.choice(("", "?", "?query=%", "/../", "%00", "#"))
    return head(draw.choice(METHODS), path, *draw.sample(HEADERS, draw.randint(0, 6)))


def huge_head(draw: random.Random) -> bytes:
    size = draw.randint(20_000, 200_000)
    many = ["a: b"] * (size // 100)
    long = "x" * size
    heads = (
        head("GET", "/healthz", f"X: {long}"),
        head("GET", f"/{long}"),
        head("GET", "/healthz", *many),
    )
    return draw.choice((*heads, b"\r\n" * size, b"GET " + long.encode()))


def wrong_framing(draw: random.Random) -> bytes:
    length = f"Content-Length: {draw.choice(LENGTHS)}"
    chunked = [
        "Transfer-Encoding: chunked",
        *draw.choice(([], [], ["Content-Length: 5"])),
    ]
    if draw.random() < 0.6:
        return head("POST", "/v1/recommend", *chunked) + draw.choice(CHUNKS)
    return head("POST", "/v1/recommend", length) + b'{"session": ["i3"]}'


def nested(draw: random.Random) -> bytes:
    depth = draw.randint(100, 50_000)
    bodies = (
        b"[" * depth,
        b'{"session":' * depth,
        b'{"session": ' + b"[" * depth + b"]" * depth,
    )
    return post("/v1/recommend", draw.choice(bodies))


def noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randint(0, 2000))


def pipelined(draw: random.Random) -> bytes:
    good = post("/v1/recommend", b'{"session": ["i3"], "k": 1}')
    count = draw.randint(1, 5)
    bad = draw.choice((noise, odd_head, wrong_framing))
    return good * count + bad(draw)


KINDS = (
    mutated,
    wrong_fields,
    odd_head,
    huge_head,
    wrong_framing,
    nested,
    noise,
    pipelined,
)


def malformed_requests(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """A malformed request: mutated bytes, wrong fields, odd or huge heads, wrong framing, deep
    nesting, noise, pipelining. There is a complete answer with a documented status or a closed
    connection within 20 seconds, and the server's memory grows by less than 64 MB."""
    with attacked(figures, make_run(folder), "--request-timeout", 1) as target:
        for number, draw in steps:
            outcome = exchanged(target.server.port, draw.choice(KINDS)(draw))
            if number % 500 == 499:
                assert target.compare(0) == "right"
                assert target.memory_growth_mb() <= MOST_GROWTH_MB
            yield outcome


def exchanged(port: int, request: bytes) -> str:
    """Send the request, and close the sending side when nothing more is received.

    Returns the status of the last answer, or `closed` if there is none.
    """
    received = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as client,
        suppress(ConnectionError),
    ):
        try:
            client.sendall(request)
            client.settimeout(MOST_SILENCE)
            with suppress(TimeoutError):
                while piece := client.recv(1 << 16):
                    received += piece
            client.settimeout(20)
            with suppress(OSError):  # the server has closed the connection already
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 16):
                received += piece
        except TimeoutError as error:
            raise AssertionError("no answer within 20 seconds") from error
    statuses = [
        int(line[9:12])
        for line in received.split(b"\r\n")
        if line.startswith(b"HTTP/1.1 ")
    ]
    assert bool(statuses) == bool(received), received[:60]
    assert set(statuses) <= DOCUMENTED | {100}, received[:60]
    return str(statuses[-1]) if statuses else "closed"


def java_requests(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """480 requests of Java's `HttpClient`, 16 at a time: GET and POST, bodies of 30 bytes and of
    200 kB, in HTTP/1.1 and with the client's default, which asks for an upgrade to HTTP/2. All are
    answered, rightly."""
    require_program("java")
    figures["requests"] = Counter()
    with attacked(figures, make_run(folder)) as target:
        for _, draw in steps:
            seed = draw.randrange(1 << 30)
            expected = ",".join(target.expected[0])
            arguments = (JAVA, target.server.port, JAVA_REQUESTS, seed, expected)
            line = ["java", *map(str, arguments)]
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, done.stderr[-300:]
            for counted in done.stdout.splitlines():
                count, _, outcome = counted.partition(" ")
                figures["requests"][outcome] += int(count)
                assert outcome.endswith(": right"), counted
            yield "all answers right"


def slow_clients(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """300 clients that send a byte of a head or of a body every 0.2 seconds, or do not read their
    answers. Unfinished bodies are cut off, four others get right answers meanwhile, open files
    return, and memory grows by at most 0.5 MB a client."""
    with attacked(figures, make_run(folder), "--request-timeout", 2) as target:
        port = target.server.port
        files = open_files(target.server)
        for number, draw in steps:
            kind = SLOW[number % len(SLOW)]
            cut_off = 0
            with repeated(target.compare) as (counts,), ExitStack() as stack:
                clients = [
                    stack.enter_context(slow_client(port, kind))
                    for _ in range(SLOW_CLIENTS)
                ]
                end = time.monotonic() + draw.uniform(5, 8)
                while time.monotonic() < end:
                    time.sleep(0.2)
                    for index, client in enumerate(clients):
                        if is_cut_off(client, kind):
                            cut_off += 1
                            another = slow_client(port, kind)
                            clients[index] = stack.enter_context(another)
            figures["cut_off"] += cut_off
            figures["plain_requests"] += counts.total()
            assert cut_off or kind != "bodies", "none was cut off"
            assert set(counts) == {"right"}, f"slow {kind}: {counts}"
            until(lambda: open_files(target.server) <= files, 20)
            assert target.memory_growth_mb() <= SLOW_CLIENTS / 2, f"slow {kind}"
            yield f"slow {kind}: all others right answers"


def slow_client(port: int, kind: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    begun = {
        "heads": b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nX: ",
        "bodies": head("POST", "/v1/recommend", "Content-Length: 100000"),
        "readers": head("GET", "/openapi/openapi.json") * 100,
    }[kind]
    with suppress(BlockingIOError):
        client.send(begun)
    return client


def is_cut_off(client: socket.socket, kind: str) -> bool:
    """Whether the server has answered (408) or closed the connection.

    Readers only look at the state of the connection; all others send one more byte.
    """
    try:
        if kind == "readers":
            state = client.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1)[0]
            return state != ESTABLISHED
        client.send(b"x")
        return client.recv(1000) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True
