"""Requests as bytes over a real socket, for what no HTTP library sends."""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.server.server_process import Server

SESSION = json.dumps({"session": ["i3"], "k": 2}).encode()


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def head(method: str, path: str, *headers: str, host: str | None = "localhost", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", *([] if host is None else [f"Host: {host}"]), *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def recommend(*headers: str, **options: Any) -> bytes:
    """A whole request to /v1/recommend."""
    return head("POST", "/v1/recommend", f"Content-Length: {len(SESSION)}", *headers, **options) + SESSION


def connect(server: Server) -> socket.socket:
    return socket.create_connection(server.address, timeout=30)


def read(client: socket.socket, method: str = "POST") -> RawAnswer:
    """One answer."""
    answer = http.client.HTTPResponse(client, method=method)
    answer.begin()
    return RawAnswer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def ask(server: Server, request: bytes) -> RawAnswer:
    with connect(server) as client:
        client.sendall(request)
        return read(client, request.split(b" ")[0].decode())
