"""The application: every request passes the same way, from its connection (connection.py) to the function of its route.

A route's function says in its annotations what it needs: `data` is the body, `query` the parameters of the query, both
msgspec's types, `request` the request itself, and the part of the path in braces has its own name. OpenAPI's document
is made from the same annotations (openapi.py).
"""

import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from posrec.server.batching import BODY_BYTES_PER_UNIT, BackgroundQueue
from posrec.server.http.access import Access
from posrec.server.http.messages import (
    BODY_TOO_LARGE,
    HTML,
    JSON,
    Answer,
    Refused,
    Request,
    error_answer,
    page,
)
from posrec.server.json_log import log_event
from posrec.server.metrics import Metrics
from posrec.server.settings import ServerSettings

LARGE_BODY = 32 << 10  # bytes; decoding more would delay other requests, and is done in the background
SESSION_ID = re.compile("(?<=^/v1/sessions/)[^/]+")  # in a path; it may stand for a person, and is not logged
ENCODER = msgspec.json.Encoder()

Handler = Callable[..., Awaitable[Any]]


class Route:
    """`path` such as /v1/similar/{item}; without a `summary` the route is not part of the OpenAPI document.

    One that has `not_found` answers 404 where what is asked for is not there. `admit` raises Refused where the server
    has too much to do already, whatever the body says. One that `writes` is closed to web pages of other sites.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str = "",
        status: int = 200,
        media_type: bytes = JSON,
        not_found: bool = False,
        admit: Callable[[], None] | None = None,
        writes: bool = False,
    ) -> None:
        self.method, self.path, self.handler, self.summary, self.status = method, path, handler, summary, status
        self.media_type, self.not_found, self.admit, self.writes = media_type, not_found, admit, writes
        self.types: dict[str, Any] = get_type_hints(handler, include_extras=True)
        self.decoder = msgspec.json.Decoder(self.types["data"]) if "data" in self.types else None
        self.query_type = self.types.get("query")
        self.takes_request = "request" in self.types
        in_braces = re.search(r"{(\w+)}", path)
        self.parameter = None if in_braces is None else in_braces[1]

    async def answer(self, request: Request, background: BackgroundQueue) -> Answer:
        arguments: dict[str, Any] = {} if self.parameter is None else {self.parameter: request.value}
        if self.decoder is not None:
            if len(request.body) <= LARGE_BODY:
                arguments["data"] = self.decoder.decode(request.body)
            else:
                decode = functools.partial(self.decoder.decode, request.body)
                with background.place(1 + len(request.body) // BODY_BYTES_PER_UNIT):
                    arguments["data"] = await background.run(decode, request.has_left)
        if self.takes_request:
            arguments["request"] = request
        if self.query_type is not None:
            given = dict(parse_qsl(request.query.decode(), keep_blank_values=True))
            arguments["query"] = msgspec.convert(given, self.query_type, strict=False)
        result = await self.handler(**arguments)
        if result is None:
            return Answer(self.status)
        if self.media_type == JSON:
            return Answer(self.status, ENCODER.encode(result))
        content = result.encode() if isinstance(result, str) else result
        return page(content) if self.media_type == HTML else Answer(self.status, content, self.media_type)


class Application:
    """All routes, and the way to them. A path has at most one part in braces, which matches anything without a slash.

    `running` is a context in which requests are answered; it lasts as long as the server.
    """

    def __init__(
        self,
        settings: ServerSettings,
        metrics: Metrics,
        background: BackgroundQueue,
        running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.settings, self.metrics, self.background, self.running = settings, metrics, background, running
        self.access = Access(settings)
        self.routes: list[Route] = []
        self.by_path: dict[str, dict[str, Route]] = {}
        self.patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []

    def route(self, method: str, path: str, summary: str = "", **options: Any) -> Callable[[Handler], Handler]:
        """A decorator for the function that answers; the options are those of Route."""

        def add_handler(handler: Handler) -> Handler:
            route = Route(method, path, handler, summary, **options)
            self.routes.append(route)
            if route.parameter is None:
                self.by_path.setdefault(path, {})[method] = route
            else:
                self.patterns.append((re.compile(re.sub(r"{\w+}", "([^/]+)", path)), {method: route}))
            return handler

        return add_handler

    def admit(self, request: Request) -> Answer | None:
        """Find the route of a request whose head is complete; the answer where its body is not needed."""
        try:
            answer = self.check(request)
        except Exception as error:  # every error is answered
            answer = error_answer(error)
        return None if answer is None else self.counted(request, answer)

    def check(self, request: Request) -> Answer | None:
        if (preflight := self.access.check(request)) is not None:
            return preflight
        methods, request.value = self.find(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            names = (*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS")
            allow = (b"allow", ", ".join(names).encode())
            if request.method == "OPTIONS":
                return Answer(204, headers=(allow,))
            raise Refused(405, "this method is not allowed here; /docs shows which one is", allow)
        if route.writes:
            self.access.check_writing(request)
        if int(request.headers.get(b"content-length", 0)) > self.settings.max_body:
            raise Refused(413, BODY_TOO_LARGE)
        if route.admit is not None:
            route.admit()
        request.route = route
        return None

    async def answer(self, request: Request) -> Answer:
        """The answer to a request that was admitted, and is complete."""
        try:
            answer = await request.route.answer(request, self.background)
        except Exception as error:  # every error is answered
            answer = error_answer(error)
        return self.counted(request, answer)

    def refuse(self, request: Request, reason: Refused) -> Answer:
        """The answer to a request that can't be received, or whose client has left."""
        return self.counted(request, error_answer(reason))

    def counted(self, request: Request, answer: Answer) -> Answer:
        """Before the answer is sent, so that a crash never loses a count."""
        seconds = time.perf_counter() - request.began
        self.metrics.request(request.path, answer.status, seconds)
        if self.settings.log_requests:
            level = logging.WARNING if answer.status >= 500 else logging.INFO
            shown, milliseconds = SESSION_ID.sub("...", request.path), round(1000 * seconds, 2)
            log_event("request", level, method=request.method, path=shown, status=answer.status, ms=milliseconds)
        if allowed := self.access.origin_headers(request.headers.get(b"origin")):
            return answer._replace(headers=(*answer.headers, *allowed))
        return answer

    def find(self, path: str) -> tuple[dict[str, Route], str | None]:
        """The routes of a path by method, and the value of its parameter."""
        if path in self.by_path:
            return self.by_path[path], None
        for pattern, methods in self.patterns:
            if match := pattern.fullmatch(path):
                return methods, match[1]
        raise Refused(404, "there is no such page; /docs lists the available ones")

    async def __call__(self, scope: object, receive: Callable[[], Awaitable[Any]], send: Handler) -> None:
        """ASGI's lifespan, by which uvicorn says that the server starts and stops."""
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
