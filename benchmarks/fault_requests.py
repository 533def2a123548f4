"""Requests as clients should not, or need not, send them: malformed ones, those of Java, and very slow ones."""

import json
import random
import shutil
import socket
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fault_server import Attack, Missing, make_run, repeated

DOCUMENTED = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 503}
MOST_GROWTH = 64 << 20  # bytes of memory, over all requests
JAVA, JAVA_REQUESTS = Path(__file__).with_name("JavaClient.java"), 480
SLOW, SLOW_CLIENTS = ("heads", "bodies", "readers"), 300
ESTABLISHED = 1  # the state of a connection, the first byte of TCP_INFO
CLICK = "/v1/sessions/a/click"
PATHS = ("/v1/recommend", "/v1/explain", "/v1/items", "/v1/run", CLICK, "/healthz", "/", "/nothing", "*")
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "PATCH", "BREW", "post", "")
VALUES = (None, True, 0, -1, 1.5, 10**30, "", "i3", "x" * 2000, "\ud800", [], {}, [[]], ["i3"], [None], {"a": 1})


class MalformedRequests(Attack):
    """A malformed request: mutated bytes, wrong fields, odd or huge heads, wrong framing, deep nesting, noise,
    pipelining. There is a complete answer with a documented status or a closed connection within 20 seconds, and the
    server's memory grows by less than 64 MB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder, 1), "--request-timeout", 1)
        self.kinds = (valid_then_mutated, wrong_fields, odd_head, huge_head, wrong_framing, nested, noise, pipelined)
        self.before = self.server.memory()

    def step(self, number: int, draw: random.Random) -> str:
        outcome = exchanged(self.server.port, draw.choice(self.kinds)(draw))
        if number % 500 == 499:
            if self.server.process.poll() is not None or self.server.ask(["i3"])[0] != 200:
                return "failed: the server does not answer any more"
            if (grown := self.server.memory() - self.before) > MOST_GROWTH:
                return f"failed: memory has grown by {grown >> 20} MB"
        return outcome

    def figures(self) -> dict[str, Any]:
        return {"memory_growth_mb": (self.server.memory() - self.before) >> 20}


class JavaRequests(Attack):
    """480 requests of Java's `HttpClient`, 16 at a time: GET and POST, bodies of 30 bytes and of 200 kB, in HTTP/1.1
    and with the client's default, which asks for an upgrade to HTTP/2. All are answered, rightly."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("java") is None:
            raise Missing("java is not installed (17 or newer)")
        super().__init__(make_run(folder, 1))
        self.counts = Counter[str]()

    def step(self, number: int, draw: random.Random) -> str:
        items = ",".join(self.server.ask(["i3"])[1])
        line = ["java", str(JAVA), str(self.server.port), str(JAVA_REQUESTS), str(draw.randrange(1 << 30)), items]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            return f"failed: {done.stderr[-300:]}"
        for outcome in done.stdout.splitlines():
            count, _, what = outcome.partition(" ")
            self.counts[what] += int(count)
            if not what.endswith(": right"):
                return f"failed: {outcome}"
        return "all answers right"

    def figures(self) -> dict[str, Any]:
        return {"requests": dict(self.counts)}


class SlowClients(Attack):
    """300 clients that send a byte of a head or of a body every 0.2 seconds, or do not read their answers. They are cut
    off, four others get right answers meanwhile, open files return, and memory grows by at most 0.5 MB a client."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder, 1), "--request-timeout", 2)
        self.cut_off, self.plain = 0, 0
        self.files, self.before = self.server.files(), self.server.memory()

    def step(self, number: int, draw: random.Random) -> str:
        kind = SLOW[number % len(SLOW)]
        before = self.cut_off
        with repeated(self.ask) as (counts,), ExitStack() as stack:
            clients = [stack.enter_context(self.connected(kind)) for _ in range(SLOW_CLIENTS)]
            end = time.monotonic() + draw.uniform(5, 8)
            while time.monotonic() < end:
                time.sleep(0.2)
                for place, client in enumerate(clients):
                    if self.is_cut_off(client, kind):
                        self.cut_off += 1
                        clients[place] = stack.enter_context(self.connected(kind))
        self.plain += sum(counts.values())
        if set(counts) != {"right"} or self.cut_off == before:
            return f"failed: slow {kind}: {dict(counts)}, {self.cut_off - before} cut off"
        if not self.wait_until(lambda: self.server.files() <= self.files, 20):
            return f"failed: slow {kind}: {self.server.files() - self.files} more open files"
        if (grown := self.server.memory() - self.before) > SLOW_CLIENTS << 19:
            return f"failed: slow {kind}: {grown >> 20} MB more memory"
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

    def figures(self) -> dict[str, Any]:
        return {
            "clients": SLOW_CLIENTS,
            "cut_off": self.cut_off,
            "plain_requests": self.plain,
            "memory_growth_mb": (self.server.memory() - self.before) >> 20,
        }


def exchanged(port: int, request: bytes) -> str:
    """Send the request and close the sending side: the status of each answer, or `closed` where there is none."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(1 << 16):
                received += piece
        except TimeoutError:
            return "failed: no answer within 20 seconds"
        except ConnectionError:
            pass
    if not received:
        return "closed"
    statuses = [int(line[9:12]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    if not statuses or not set(statuses) <= DOCUMENTED | {100}:
        return f"failed: {received[:60]!r}"
    return str(statuses[-1])


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("utf-8", "replace")


def post(path: str, body: bytes, *headers: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *headers) + body


def valid_then_mutated(draw: random.Random) -> bytes:
    request = bytearray(post(draw.choice(PATHS), json.dumps({"session": ["i3", "i4"], "k": 5}).encode()))
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
    return post(draw.choice(PATHS[:5]), json.dumps(body).encode())


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
