"""What every request passes before its route: the API key, the time a client may take, counts and the log."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from posrec.serving.metrics import Metrics
from posrec.serving.server_log import tell
from posrec.serving.server_settings import ServerSettings
from posrec.serving.wire import Problem

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

PATIENCE = 10.0  # seconds a client may take between two pieces of its body
OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # without a key


class TooSlow(RuntimeError):
    """The client does not send what it announced."""


class Edge:
    """An ASGI application around another."""

    def __init__(self, app: Any, settings: ServerSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def patiently() -> Any:
            try:
                return await asyncio.wait_for(receive(), PATIENCE)
            except TimeoutError:
                raise TooSlow from None

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self.settings.api_key and scope["path"] not in OPEN and not self.has_key(scope):
                await refuse(noting, 401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
            else:
                await self.app(scope, patiently, noting)
        finally:
            seconds = time.perf_counter() - began
            self.metrics.request(scope["path"], status, seconds)
            if status == 503:
                self.metrics.count("refused")
            if self.settings.log_requests:
                level = logging.WARNING if status >= 500 else logging.INFO
                milliseconds = round(1000 * seconds, 2)
                tell("request", level, method=scope["method"], path=scope["path"], status=status, ms=milliseconds)

    def has_key(self, scope: Scope) -> bool:
        assert self.settings.api_key is not None
        wanted = self.settings.api_key.encode()
        for name, value in scope["headers"]:
            given = value if name == b"x-api-key" else value[7:] if name == b"authorization" else None
            if given is not None and hmac.compare_digest(given, wanted):
                return name == b"x-api-key" or value[:7].lower() == b"bearer "
        return False


async def refuse(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(Problem(sentence))})
