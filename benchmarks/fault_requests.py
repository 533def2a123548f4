"""Malformed requests: every answer is a complete HTTP answer with a documented status, or a closed connection."""

import json
import random
import socket
from pathlib import Path

from fault_server import Server, make_run

DOCUMENTED = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 503}
MOST_GROWTH = 64 << 20  # bytes of memory, over all requests
CLICK = "/v1/sessions/a/click"
PATHS = ("/v1/recommend", "/v1/explain", "/v1/items", "/v1/run", CLICK, "/healthz", "/", "/nothing", "*")
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "PATCH", "BREW", "post", "")
VALUES = (None, True, 0, -1, 1.5, 10**30, "", "i3", "x" * 2000, "\ud800", [], {}, [[]], ["i3"], [None], {"a": 1})


class MalformedRequests:
    """One request of a random kind for each step. The server must stay alive and small."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(make_run(folder, 1), "--request-timeout", 1)
        assert self.server.ask(["i3"])[0] == 200
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

    def close(self) -> dict[str, int]:
        about = {"tracebacks": self.server.tracebacks(), "memory_growth_mb": (self.server.memory() - self.before) >> 20}
        self.server.stop()
        return about


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
