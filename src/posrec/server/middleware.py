"""What every request passes before its route: the API key, the time a client may take, counts and the log."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from posrec.server.error_handlers import TooLarge, said
from posrec.server.log import tell
from posrec.server.metrics import Metrics
from posrec.server.request_timeout import Patience
from posrec.server.schemas import Problem
from posrec.server.settings import ServerSettings

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Quick = Callable[[bytes], Awaitable[bytes]]  # a request's body -> its answer's

CLOSE = (b"connection", b"close")
GONE = 499  # what is noted of a client that left before its answer
# What a body of JSON may be called. Text and forms as well: fetch and `curl -d` say so unless told otherwise.
JSON = (b"application/json", b"text/plain", b"application/x-www-form-urlencoded")
OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # without a key


class Visit:
    """One request on its way: its body's end and its answer's status are noted as they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, patience: Patience, metrics: Metrics) -> None:
        self.began, self.seconds, self.status = time.perf_counter(), 0.0, 0
        self.scope, self.receive_, self.send_, self.patience, self.metrics = scope, receive, send, patience, metrics
        self.ended, self.gone = False, False
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        patience.begin(task)

    async def receive(self) -> Any:
        message = await self.receive_()
        if not message.get("more_body", False):
            self.ended, self.gone = True, message["type"] == "http.disconnect"
            self.patience.end(self.task)
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.patience.end(self.task)
            self.ended = self.ended or not has_body(self.scope)
            if not self.gone:  # else nobody is there to be told
                self.note(message["status"])
            if not self.ended:
                message = {**message, "headers": [*message["headers"], CLOSE]}
        elif not self.ended and not message.get("more_body", False):
            await self.send_({**message, "more_body": True})
            await self.drain()
            message = {"type": "http.response.body", "body": b""}
        await self.send_(message)

    def note(self, status: int) -> None:
        """Before the answer leaves: who has it finds it counted, even if this process dies with sending it."""
        self.status, self.seconds = status, time.perf_counter() - self.began
        self.metrics.request(self.scope["path"], status, self.seconds)
        if status == 503:
            self.metrics.count("refused")

    async def drain(self) -> None:
        """Read on after a refusal, but not for ever: a client whose sending is cut off does not get to read why."""
        self.patience.begin(self.task)
        try:
            while not self.ended:
                await self.receive()
        except asyncio.CancelledError:
            if not self.patience.was_late(self.task):
                raise
            self.ended = True


class Edge:
    """An ASGI application around another."""

    def __init__(self, app: Any, settings: ServerSettings, metrics: Metrics, quick: dict[str, Quick]) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        # Pages of other origins need the headers that Litestar adds.
        self.quick = {} if settings.allow_origin else quick
        self.patience = Patience(settings.patience)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = Visit(scope, receive, send, self.patience, self.metrics)
        try:
            await self.pass_on(scope, visit)
        except asyncio.CancelledError:
            if not self.patience.was_late(visit.task):
                raise
            visit.note(408)  # and not by visit.send, which would wait for the rest once more
            await refuse(visit.send_, 408, f"the body did not come within {self.patience.seconds:g} seconds", CLOSE)
        finally:
            self.patience.end(visit.task)
            if not visit.status:
                visit.note(GONE)
            if self.settings.log_requests:
                log(visit)

    async def pass_on(self, scope: Scope, visit: Visit) -> None:
        path = scope["path"]
        if self.settings.api_key and path not in OPEN and not self.has_key(scope):
            await refuse(visit.send, 401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        elif scope["method"] == "POST" and path.startswith("/v1/") and (kind := other_kind(scope)):
            await refuse(visit.send, 415, f"the body must be JSON (application/json), not {kind[:100]}")
        elif path in self.quick and scope["method"] == "POST":
            await self.answer(self.quick[path], visit)
        else:
            await self.app(scope, visit.receive, visit.send)

    async def answer(self, quick: Quick, visit: Visit) -> None:
        """The road of most requests, without routing and what else a framework does for each."""
        try:
            body, more = b"", True
            while more:
                message = await visit.receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self.settings.max_body:
                    raise TooLarge
            content = await quick(body)
        except Exception as error:  # all errors are answered in one way
            status, sentence, retry_after = said(error)
            later = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
            await refuse(visit.send, status, sentence, *later)
            return
        await respond(visit.send, 200, content)

    def has_key(self, scope: Scope) -> bool:
        assert self.settings.api_key is not None
        wanted = self.settings.api_key.encode()
        for name, value in scope["headers"]:
            given = value if name == b"x-api-key" else value[7:] if name == b"authorization" else None
            if given is not None and hmac.compare_digest(given, wanted):
                return bool(name == b"x-api-key" or value[:7].lower() == b"bearer ")
        return False


def log(visit: Visit) -> None:
    level = logging.WARNING if visit.status >= 500 else logging.INFO
    method, path, milliseconds = visit.scope["method"], visit.scope["path"], round(1000 * visit.seconds, 2)
    tell("request", level, method=method, path=path, status=visit.status, ms=milliseconds)


def has_body(scope: Scope) -> bool:
    """Whether the request's head tells of a body."""
    heads = scope["headers"]
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in heads)


def other_kind(scope: Scope) -> str | None:
    """What the body is said to be, where that is not JSON."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.partition(b";")[0].strip().lower()
            return None if kind in JSON or kind.endswith(b"+json") or not kind else kind.decode("latin-1")
    return None


async def refuse(send: Send, status: int, sentence: str, *more: tuple[bytes, bytes]) -> None:
    await respond(send, status, msgspec.json.encode(Problem(sentence)), *more)


async def respond(send: Send, status: int, content: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
