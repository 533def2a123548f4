"""Requests as clients should not, or need not, send them: malformed ones, those of Java, and very slow ones."""

import random
import shutil
import socket
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from fault_server import Failure, Missing, ServerAttack, make_run, repeated, require, wait_until
from paced_client import head, post

DOCUMENTED = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 503}
MOST_GROWTH_MB = 64  # of memory, over all requests
JAVA, JAVA_REQUESTS = Path(__file__).with_name("JavaClient.java"), 480
SLOW, SLOW_CLIENTS = ("heads", "bodies", "readers"), 300
ESTABLISHED = 1  # the state of a connection, the first byte of TCP_INFO
CLICK = "/v1/sessions/a/click"
PATHS = ("/v1/recommend", "/v1/explain", "/v1/items", "/v1/run", CLICK, "/healthz", "/", "/nothing", "*")
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "PATCH", "BREW", "post", "")
VALUES = (None, True, 0, -1, 1.5, 10**30, "", "i3", "x" * 2000, "\ud800", [], {}, [[]], ["i3"], [None], {"a": 1})


class MalformedRequests(ServerAttack):
    """A malformed request: mutated bytes, wrong fields, odd or huge heads, wrong framing, deep nesting, noise,
    pipelining. There is a complete answer with a documented status or a closed connection within 20 seconds, and the
    server's memory grows by less than 64 MB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder), "--request-timeout", 1)
        self.kinds = (valid_then_mutated, wrong_fields, odd_head, huge_head, wrong_framing, nested, noise, pipelined)

    def step(self, number: int, draw: random.Random) -> str:
        outcome = exchanged(self.server.port, draw.choice(self.kinds)(draw))
        if number % 500 == 499:
            require(self.server.ask(["i3"])[0] == 200, "the server does not answer any more")
            grown = self.server.memory_mb() - self.memory_before
            require(grown <= MOST_GROWTH_MB, f"memory has grown by {grown} MB")
        return outcome


class JavaRequests(ServerAttack):
    """480 requests of Java's `HttpClient`, 16 at a time: GET and POST, bodies of 30 bytes and of 200 kB, in HTTP/1.1
    and with the client's default, which asks for an upgrade to HTTP/2. All are answered, rightly."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("java") is None:
            raise Missing("java is not installed (17 or newer)")
        super().__init__(make_run(folder))
        self.figures["requests"] = Counter()

    def step(self, number: int, draw: random.Random) -> str:
        items = ",".join(self.server.ask(["i3"])[1])
        line = ["java", str(JAVA), str(self.server.port), str(JAVA_REQUESTS), str(draw.randrange(1 << 30)), items]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
        require(done.returncode == 0, done.stderr[-300:])
        for outcome in done.stdout.splitlines():
            count, _, what = outcome.partition(" ")
            self.figures["requests"][what] += int(count)
            require(what.endswith(": right"), outcome)
        return "all answers right"


class SlowClients(ServerAttack):
    """300 clients that send a byte of a head or of a body every 0.2 seconds, or do not read their answers. They are cut
    off, four others get right answers meanwhile, open files return, and memory grows by at most 0.5 MB a client."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder), "--request-timeout", 2)
        self.files = self.server.files()

    def step(self, number: int, draw: random.Random) -> str:
        kind, cut_off = SLOW[number % len(SLOW)], 0
        with repeated(self.ask) as (counts,), ExitStack() as stack:
            clients = [stack.enter_context(self.connected(kind)) for _ in range(SLOW_CLIENTS)]
            end = time.monotonic() + draw.uniform(5, 8)
            while time.monotonic() < end:
                time.sleep(0.2)
                for place, client in enumerate(clients):
                    if self.is_cut_off(client, kind):
                        cut_off += 1
                        clients[place] = stack.enter_context(self.connected(kind))
        self.figures["cut_off"] += cut_off
        self.figures["plain_requests"] += sum(counts.values())
        require(set(counts) == {"right"} and cut_off, f"slow {kind}: {dict(counts)}, {cut_off} cut off")
        require(wait_until(lambda: self.server.files() <= self.files, 20), f"slow {kind}: files are still open")
        grown = self.server.memory_mb() - self.memory_before
        require(grown <= SLOW_CLIENTS / 2, f"slow {kind}: {grown} MB more memory")
        return f"slow {kind}: cut off, all others right answers"

    def connected(self, kind: str) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.server.port))
        match kind:
            case "heads":
                client.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nX: ")
            case "bodies":
                client.sendall(head("POST", "/v1/recommend", "Content-Length: 100000"))
            case _:
                client.setblocking(False)
                with suppress(BlockingIOError):
                    client.send(head("GET", "/openapi/openapi.json") * 100)
        return client

    def is_cut_off(self, client: socket.socket, kind: str) -> bool:
        """Send one more byte, or only look: whether the server has answered (408) or closed the connection."""
        client.setblocking(False)
        try:
            if kind == "readers":
                return client.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED
            client.send(b"x")
            return client.recv(1000) is not None
        except BlockingIOError:
            return False
        except OSError:
            return True


def exchanged(port: int, request: bytes) -> str:
    """Send the request and close the sending side: the status of each answer, or `closed` where there is none."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 16):
                received += piece
        except TimeoutError as error:
            raise Failure("no answer within 20 seconds") from error
        except ConnectionError:
            pass
    if not received:
        return "closed"
    statuses = [int(line[9:12]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    require(statuses and set(statuses) <= DOCUMENTED | {100}, repr(received[:60]))
    return str(statuses[-1])


def valid_then_mutated(draw: random.Random) -> bytes:
    request = bytearray(post(draw.choice(PATHS), {"session": ["i3", "i4"], "k": 5}))
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(request))
        match draw.randrange(3):
            case 0:
                request[place] = draw.randrange(256)
            case 1:
                del request[place : place + draw.randint(1, 20)]
            case _:
                request[place:place] = draw.randbytes(draw.randint(1, 20))
    return bytes(request)


def wrong_fields(draw: random.Random) -> bytes:
    names = ("session", "k", "exclude", "diversify", "explore", "allow", "deny", "session_id", "item", "other")
    body = {draw.choice(names): draw.choice(VALUES) for _ in range(draw.randint(0, 5))}
    return post(draw.choice(PATHS[:5]), body)


def odd_head(draw: random.Random) -> bytes:
    odd = (
        "Upgrade: h2c", "Connection: Upgrade", "Connection: close", "Expect: 100-continue", "Host: evil.example",
        "Transfer-Encoding: gzip", "Content-Type: text/xml", "Origin: https://evil.example", "X-API-Key: x",
        "Authorization: Bearer", "Range: bytes=0-1", "Content-Encoding: gzip", "Trailer: X", ": empty", "no colon",
        "X:\x00", "Accept: */*;q=nonsense", "Cookie: " + "a=b;" * 500,
    )  # fmt: skip
    return head(draw.choice(METHODS), draw.choice(PATHS) + draw.choice(("", "?", "?query=%", "/../", "%00", "#")),
                *draw.sample(odd, draw.randint(0, 6)))  # fmt: skip


def huge_head(draw: random.Random) -> bytes:
    size = draw.randint(20_000, 200_000)
    return draw.choice((
        head("GET", "/healthz", "X: " + "x" * size), head("GET", "/" + "x" * size),
        head("GET", "/healthz", *["a: b"] * (size // 100)), b"\r\n" * size, b"GET " + b"x" * size,
    ))  # fmt: skip


def wrong_framing(draw: random.Random) -> bytes:
    length = draw.choice(("-1", "1e3", "0x10", "999999999999", "5, 5", "", "5\r\nContent-Length: 6", " 7 "))
    chunks = draw.choice((
        b"5\r\nhello\r\n0\r\n\r\n", b"-5\r\n", b"fffffffff\r\n", b"5;" + b"x" * 50_000 + b"\r\nhello\r\n",
        b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", b"g\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"",
    ))  # fmt: skip
    both = draw.random() < 0.3
    if both or draw.random() < 0.5:
        return (
            head("POST", "/v1/recommend", "Transfer-Encoding: chunked", *(["Content-Length: 5"] if both else []))
            + chunks
        )
    return head("POST", "/v1/recommend", f"Content-Length: {length}") + b'{"session": ["i3"]}'


def nested(draw: random.Random) -> bytes:
    depth = draw.randint(100, 50_000)
    return post(
        "/v1/recommend",
        draw.choice((b"[" * depth, b'{"session":' * depth, b'{"session": ' + b"[" * depth + b"]" * depth)),
    )


def noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randint(0, 2000))


def pipelined(draw: random.Random) -> bytes:
    good = post("/v1/recommend", b'{"session": ["i3"], "k": 1}')
    return good * draw.randint(1, 5) + draw.choice((noise, odd_head, wrong_framing))(draw)
