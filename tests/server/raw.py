"""Requests as bytes over a real socket, for what no HTTP library sends."""

import http.client
import io
import json
import socket
from typing import Any

from tests.server.server_process import Answer, Server

SESSION = json.dumps({"session": ["i3"], "k": 2}).encode()


def head(
    method: str,
    path: str,
    *headers: str,
    host: str | None = "localhost",
    version: str = "1.1",
) -> bytes:
    lines = [
        f"{method} {path} HTTP/{version}",
        *([] if host is None else [f"Host: {host}"]),
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1")


def recommend(*headers: str, **options: Any) -> bytes:
    return (
        head(
            "POST",
            "/v1/recommend",
            f"Content-Length: {len(SESSION)}",
            *headers,
            **options,
        )
        + SESSION
    )


class Received(io.BufferedReader):
    """What a connection receives. http.client closes it after an answer; here the next answer may
    be in it already."""

    def close(self) -> None:
        pass


class Client:
    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(server.address, timeout=120)
        self.sendall = self.socket.sendall
        self.shutdown = self.socket.shutdown
        self.received = Received(socket.SocketIO(self.socket, "r"))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def makefile(self, *_: object) -> Received:
        return self.received

    def read(self, method: str = "POST") -> Answer:
        answer = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
        answer.begin()
        return Answer(
            answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        )

    def rest(self) -> bytes:
        """All that the server still sends until it closes the connection."""
        try:
            return self.received.read()
        except ConnectionError:
            return b""


def ask(server: Server, request: bytes) -> Answer:
    with Client(server) as client:
        client.sendall(request)
        return client.read(request.split(b" ")[0].decode())
