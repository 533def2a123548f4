"""What every request passes before its route: the API key, the time a client may take, counts and the log."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from posrec.serving.metrics import Metrics
from posrec.serving.problems import TooLarge, said
from posrec.serving.server_log import tell
from posrec.serving.server_settings import ServerSettings
from posrec.serving.wire import Problem

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Quick = Callable[[bytes], Awaitable[bytes]]  # a request's body -> its answer's

GONE = 499  # what is noted of a client that left before its answer
PATIENCE = 10.0  # seconds a client may take to send its body
OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # without a key


class Edge:
    """An ASGI application around another."""

    def __init__(self, app: Any, settings: ServerSettings, metrics: Metrics, quick: dict[str, Quick]) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        # Pages of other origins need the headers that Litestar adds.
        self.quick = {} if settings.allow_origin else quick

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE

        # One timer a request: waiting for every piece with a timeout of its own would cost more than the rest of this.
        task = asyncio.current_task()
        assert task is not None
        slow = asyncio.get_running_loop().call_later(PATIENCE, task.cancel)

        async def noting_the_end() -> Any:
            message = await receive()
            if not message.get("more_body", False):
                slow.cancel()
            return message

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                slow.cancel()
                status = message["status"]
            await send(message)

        try:
            if self.settings.api_key and scope["path"] not in OPEN and not self.has_key(scope):
                await refuse(noting, 401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
            elif scope["method"] == "POST" and scope["path"] in self.quick:
                await self.answer(self.quick[scope["path"]], noting_the_end, noting)
            else:
                await self.app(scope, noting_the_end, noting)
        except asyncio.CancelledError:
            if not slow.cancelled() and slow.when() <= asyncio.get_running_loop().time():
                await refuse(noting, 408, f"the body did not come within {PATIENCE:.0f} seconds")
            else:
                raise
        finally:
            slow.cancel()
            seconds = time.perf_counter() - began
            self.metrics.request(scope["path"], status, seconds)
            if status == 503:
                self.metrics.count("refused")
            if self.settings.log_requests:
                level = logging.WARNING if status >= 500 else logging.INFO
                milliseconds = round(1000 * seconds, 2)
                tell("request", level, method=scope["method"], path=scope["path"], status=status, ms=milliseconds)

    async def answer(self, quick: Quick, receive: Receive, send: Send) -> None:
        """The road of most requests, without routing and what else a framework does for each."""
        try:
            body, more = b"", True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self.settings.max_body:
                    raise TooLarge
            content = await quick(body)
        except Exception as error:  # all errors are answered in one way
            await refuse(send, *said(error))
            return
        length = str(len(content)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def has_key(self, scope: Scope) -> bool:
        assert self.settings.api_key is not None
        wanted = self.settings.api_key.encode()
        for name, value in scope["headers"]:
            given = value if name == b"x-api-key" else value[7:] if name == b"authorization" else None
            if given is not None and hmac.compare_digest(given, wanted):
                return bool(name == b"x-api-key" or value[:7].lower() == b"bearer ")
        return False


async def refuse(send: Send, status: int, sentence: str, retry_after: int | None = None) -> None:
    content = msgspec.json.encode(Problem(sentence))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
