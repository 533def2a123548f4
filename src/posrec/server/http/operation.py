"""One operation of the HTTP interface: a method and a path, and the function that answers it.

The function's annotations say what it needs: `data` is the body and `query` the parameters of the
query, both types of msgspec; `context` is a RequestContext; parts of the path in braces come under
their own names. The OpenAPI document (openapi.py) is made from the annotations and the first line
of the docstring; a function without a docstring is not in it.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from posrec.server.batching import BackgroundQueue
from posrec.server.errors import Refused
from posrec.server.http.access import AccessRules
from posrec.server.http.body import BodyReader
from posrec.server.http.responses import (
    JSON,
    error_response,
    not_allowed,
    page_response,
)
from posrec.server.work import BODY_BYTES_PER_UNIT, LARGE_BODY

TEXT = "text/plain"
HTML = "text/html"
# Of JSON, where nothing is written: `fetch` and `curl -d` send text and form types by default. A
# browser sends these for any page without asking first, so what writes accepts JSON alone.
READING_TYPES = ("", JSON, TEXT, "application/x-www-form-urlencoded")
ENCODER = msgspec.json.Encoder()


class RequestContext(NamedTuple):
    received: float  # when, in seconds since 1970
    body_bytes: int
    has_left: Callable[[], Awaitable[bool]]


class Tools(NamedTuple):
    """What all operations of a worker share."""

    rules: AccessRules
    bodies: BodyReader
    background: BackgroundQueue


@dataclass
class Operation:
    method: str
    path: str  # such as /v1/similar/{item}
    handler: Callable[..., Awaitable[Any]]
    status: int = 200
    media_type: str = JSON
    not_found: bool = False  # it answers 404 if what is asked for is not there
    # It is closed to web pages of other sites, and answers 404 if nothing is stored here.
    writes: bool = False

    def __post_init__(self) -> None:
        self.summary = (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")
        self.types: dict[str, Any] = get_type_hints(self.handler, include_extras=True)
        self.query_type = self.types.get("query")
        self.decoder: msgspec.json.Decoder[Any] | None = None
        if "data" in self.types:
            self.decoder = msgspec.json.Decoder(self.types["data"])

    async def answer(self, request: Request, tools: Tools) -> Response:
        received = time.time()
        if self.writes:
            tools.rules.check_origin(request.headers)
        arguments: dict[str, Any] = dict(request.path_params)
        if self.query_type is not None:
            query = dict(request.query_params)
            arguments["query"] = msgspec.convert(query, self.query_type, strict=False)
        if self.decoder is None:
            return await self.call_handler(request, arguments, received, 0)
        check_content_type(request, (JSON,) if self.writes else READING_TYPES)
        body = bytearray()
        try:
            await tools.bodies.receive(request, body)
            arguments["data"] = await self.decoded(request, body, tools.background)
            return await self.call_handler(request, arguments, received, len(body))
        finally:
            tools.bodies.release(body)

    async def decoded(
        self, request: Request, body: bytearray, background: BackgroundQueue
    ) -> Any:
        assert self.decoder is not None
        if len(body) <= LARGE_BODY:
            return self.decoder.decode(body)
        decode = partial(self.decoder.decode, body)
        work = 1 + len(body) // BODY_BYTES_PER_UNIT
        return await background.compute(decode, work, request.is_disconnected)

    async def call_handler(
        self,
        request: Request,
        arguments: dict[str, Any],
        received: float,
        body_bytes: int,
    ) -> Response:
        if "context" in self.types:
            context = RequestContext(received, body_bytes, request.is_disconnected)
            arguments["context"] = context
        result = await self.handler(**arguments)
        if result is None:
            return Response(status_code=self.status)
        if self.media_type == HTML:
            return page_response(result)
        content = ENCODER.encode(result) if self.media_type == JSON else result
        return Response(content, self.status, media_type=self.media_type)


class OperationsOfPath:
    """The operations of a path, as an application that answers every error itself."""

    def __init__(self, operations: Iterable[Operation], tools: Tools) -> None:
        self.by_method = {operation.method: operation for operation in operations}
        if "GET" in self.by_method:
            self.by_method["HEAD"] = self.by_method["GET"]
        self.tools = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self.by_method.get(scope["method"])
        try:
            if operation is None:
                response = not_allowed(self.by_method)
            else:
                request = Request(scope, receive)
                response = await operation.answer(request, self.tools)
        except Exception as error:  # every error is answered
            response = error_response(error)
        await response(scope, receive, send)


def routes_of(operations: Sequence[Operation], tools: Tools) -> list[Route]:
    """A route for each path."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [
        Route(path, OperationsOfPath(of_path, tools))
        for path, of_path in by_path.items()
    ]


def check_content_type(request: Request, accepted: Sequence[str]) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in accepted and not kind.endswith("+json"):
        sent = kind[:100] or "of no type"
        raise Refused(415, f"the body must be JSON (application/json), not {sent}")
