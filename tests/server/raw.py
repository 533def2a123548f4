"""Requests as bytes over a real socket, for what no HTTP library sends."""

import http.client
import io
import json
import socket
import struct

from tests.server.asking import Answer
from tests.server.server_process import Server

SESSION = json.dumps({"session": ["i3"], "k": 2}).encode()


def head(
    method: str,
    path: str,
    *headers: str,
    host: str | None = "localhost",
    version: str = "1.1",
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}"]
    if host is not None:
        lines.append(f"Host: {host}")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1")


def post(
    path: str, body: bytes, *headers: str, host: str | None = "localhost"
) -> bytes:
    return (
        head("POST", path, f"Content-Length: {len(body)}", *headers, host=host) + body
    )


def recommend(*headers: str, host: str | None = "localhost") -> bytes:
    return post("/v1/recommend", SESSION, *headers, host=host)


def reset(connection: socket.socket) -> None:
    """Close the connection without a goodbye, as a client that crashes does."""
    linger_for_no_time = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_no_time)
    connection.close()


class Received(io.BufferedReader):
    """The bytes that a connection receives.

    http.client closes it after an answer; here it may hold the next answer already.
    """

    def close(self) -> None:
        pass


class Client:
    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(server.address, timeout=120)
        self.sendall = self.socket.sendall
        self.received = Received(socket.SocketIO(self.socket, "r"))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def makefile(self, *_: object) -> Received:
        """For http.client, which takes this object for a socket."""
        return self.received

    def read(self, method: str = "POST") -> Answer:
        response = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
        response.begin()
        return Answer.read(response)

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
