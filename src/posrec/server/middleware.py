"""What every request passes before its route: API key, content type, request timeout, metrics and the log."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from posrec.server.error_handlers import TooLarge, error_response
from posrec.server.log import log_event
from posrec.server.metrics import Metrics
from posrec.server.schemas import ErrorAnswer
from posrec.server.settings import ServerSettings
from posrec.server.timeouts import RequestTimeout

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
QuickHandler = Callable[[bytes], Awaitable[bytes]]  # the body of a request -> the body of its answer

CLOSE = (b"connection", b"close")
CLIENT_CLOSED = 499  # counted and logged where a client disconnected before its answer
# Content types that are accepted for JSON. `fetch` and `curl -d` send text and form types by default.
JSON_TYPES = (b"application/json", b"text/plain", b"application/x-www-form-urlencoded")
PUBLIC_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # need no API key


class TrackedRequest:
    """One request: notices the end of its body and records the status of its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, timeout: RequestTimeout, metrics: Metrics) -> None:
        self.began, self.seconds, self.status = time.perf_counter(), 0.0, 0
        self.scope, self.receive_, self.send_, self.timeout, self.metrics = scope, receive, send, timeout, metrics
        self.received, self.disconnected = False, False  # the whole body; the client has left
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        timeout.start(task)

    async def receive(self) -> Any:
        message = await self.receive_()
        if not message.get("more_body", False):
            self.received, self.disconnected = True, message["type"] == "http.disconnect"
            self.timeout.stop(self.task)
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.timeout.stop(self.task)
            self.received = self.received or not has_body(self.scope)
            if not self.disconnected:
                self.record(message["status"])
            if not self.received:
                message = {**message, "headers": [*message["headers"], CLOSE]}
        elif not self.received and not message.get("more_body", False):
            await self.send_({**message, "more_body": True})
            await self.drain()
            message = {"type": "http.response.body", "body": b""}
        await self.send_(message)

    def record(self, status: int) -> None:
        """Count before sending, so that a crash never loses a count."""
        self.status, self.seconds = status, time.perf_counter() - self.began
        self.metrics.request(self.scope["path"], status, self.seconds)
        if status == 503:
            self.metrics.count("refused")

    async def drain(self) -> None:
        """Read the rest of a refused body, up to the timeout: a client that is cut off can't read the answer."""
        self.timeout.start(self.task)
        try:
            while not self.received:
                await self.receive()
        except asyncio.CancelledError:
            if not self.timeout.has_expired(self.task):
                raise
            self.received = True


class Middleware:
    """An ASGI application that wraps another."""

    def __init__(self, app: Any, settings: ServerSettings, metrics: Metrics, quick: dict[str, QuickHandler]) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        # With CORS, answers need the headers that Litestar adds.
        self.quick = {} if settings.allow_origin else quick
        self.timeout = RequestTimeout(settings.request_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = TrackedRequest(scope, receive, send, self.timeout, self.metrics)
        try:
            await self.dispatch(scope, request)
        except asyncio.CancelledError:
            if not self.timeout.has_expired(request.task):
                raise
            request.record(408)  # request.send would wait for the rest of the body again, so this uses send_
            sentence = f"the body was not received within {self.timeout.seconds:g} seconds"
            await send_error(request.send_, 408, sentence, CLOSE)
        finally:
            self.timeout.stop(request.task)
            if not request.status:
                request.record(CLIENT_CLOSED)
            if self.settings.log_requests:
                log_request(request)

    async def dispatch(self, scope: Scope, request: TrackedRequest) -> None:
        path = scope["path"]
        if self.settings.api_key and path not in PUBLIC_PATHS and not self.has_key(scope):
            await send_error(request.send, 401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        elif scope["method"] == "POST" and path.startswith("/v1/") and (kind := wrong_content_type(scope)):
            await send_error(request.send, 415, f"the body must be JSON (application/json), not {kind[:100]}")
        elif path in self.quick and scope["method"] == "POST":
            await self.answer(self.quick[path], request)
        else:
            await self.app(scope, request.receive, request.send)

    async def answer(self, quick: QuickHandler, request: TrackedRequest) -> None:
        """Most requests take this path, without the cost of the framework's routing."""
        try:
            body, more = b"", True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self.settings.max_body:
                    raise TooLarge
            content = await quick(body)
        except Exception as error:  # all errors are answered in the same way
            status, sentence, retry_after = error_response(error)
            later = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
            await send_error(request.send, status, sentence, *later)
            return
        await send_json(request.send, 200, content)

    def has_key(self, scope: Scope) -> bool:
        assert self.settings.api_key is not None
        wanted = self.settings.api_key.encode()
        for name, value in scope["headers"]:
            given = value if name == b"x-api-key" else value[7:] if name == b"authorization" else None
            if given is not None and hmac.compare_digest(given, wanted):
                return bool(name == b"x-api-key" or value[:7].lower() == b"bearer ")
        return False


def log_request(request: TrackedRequest) -> None:
    level = logging.WARNING if request.status >= 500 else logging.INFO
    method, path, milliseconds = request.scope["method"], request.scope["path"], round(1000 * request.seconds, 2)
    log_event("request", level, method=method, path=path, status=request.status, ms=milliseconds)


def has_body(scope: Scope) -> bool:
    """Whether the headers announce a body."""
    headers = scope["headers"]
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def wrong_content_type(scope: Scope) -> str | None:
    """The Content-Type header, where it is not one for JSON."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.partition(b";")[0].strip().lower()
            return None if kind in JSON_TYPES or kind.endswith(b"+json") or not kind else kind.decode("latin-1")
    return None


async def send_error(send: Send, status: int, sentence: str, *more: tuple[bytes, bytes]) -> None:
    await send_json(send, status, msgspec.json.encode(ErrorAnswer(sentence)), *more)


async def send_json(send: Send, status: int, content: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
