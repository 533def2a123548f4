"""Asks an application in this process, without a server."""

import json
from typing import Any

from starlette.applications import Starlette
from starlette.types import Message


async def ask(app: Starlette, path: str, body: Any = None) -> Any:
    """The JSON of the answer: to POST where there is a body, otherwise to GET."""
    content = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    received = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        received.extend(message.get("body", b""))

    await app(scope, receive, send)
    return json.loads(received)
