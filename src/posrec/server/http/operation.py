"""One operation of the HTTP interface: a method and a path, and the function that answers it.

The function says in its annotations what it needs: `data` is the body and `query` the parameters of
the query, both types of msgspec; `context` is a RequestContext, and the part of the path in braces
has its own name. The OpenAPI document is made from the same annotations (openapi.py).
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from posrec.server.batching import BackgroundQueue
from posrec.server.errors import Refused
from posrec.server.http.access import AccessRules
from posrec.server.http.body import BodyReader
from posrec.server.http.responses import JSON, error_response, page_response
from posrec.server.work import BODY_BYTES_PER_UNIT

TEXT = "text/plain"
HTML = "text/html"
LARGE_BODY = (
    32 << 10
)  # bytes; decoding more would delay other requests, and is done in the background
# Content types that are accepted for JSON where nothing is written. `fetch` and `curl -d` send text
# and form types by default. A browser sends these for any page without asking first, so what writes
# accepts JSON alone.
READING_TYPES = ("", JSON, "text/plain", "application/x-www-form-urlencoded")
ENCODER = msgspec.json.Encoder()

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class RequestContext:
    body_bytes: int
    has_left: Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Tools:
    """What all operations of a worker need to receive a request."""

    rules: AccessRules
    bodies: BodyReader
    background: BackgroundQueue


@dataclass
class Operation:
    method: str
    path: str  # such as /v1/similar/{item}
    handler: Handler
    summary: str = ""  # without it, the operation is not part of the OpenAPI document
    _: KW_ONLY
    status: int = 200
    media_type: str = JSON
    not_found: bool = False  # it answers 404 where what is asked for is not there
    admit: Callable[[], None] | None = (
        None  # raises Refused where the server has too much to do already
    )
    writes: bool = False  # it is closed to web pages of other sites

    def __post_init__(self) -> None:
        self.types: dict[str, Any] = get_type_hints(self.handler, include_extras=True)
        self.decoder = (
            msgspec.json.Decoder(self.types["data"]) if "data" in self.types else None
        )
        self.query_type = self.types.get("query")
        self.parameters: list[str] = re.findall(r"{(\w+)}", self.path)

    def route(self, tools: Tools) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await self.answer(request, tools)
            except Exception as error:  # every error is answered
                return error_response(error)

        return Route(self.path, endpoint, methods=[self.method])

    async def answer(self, request: Request, tools: Tools) -> Response:
        if self.writes:
            tools.rules.check_origin(request.headers)
        if self.admit is not None:
            self.admit()
        arguments: dict[str, Any] = {
            name: request.path_params[name] for name in self.parameters
        }
        if self.query_type is not None:
            arguments["query"] = msgspec.convert(
                dict(request.query_params), self.query_type, strict=False
            )
        if self.decoder is None:
            return self.response(
                await self.handler(**arguments, **self.context(request, 0))
            )
        check_content_type(request, (JSON,) if self.writes else READING_TYPES)
        async with tools.bodies.read(request) as body:
            arguments["data"] = await self.decode(body, request, tools.background)
            return self.response(
                await self.handler(**arguments, **self.context(request, len(body)))
            )

    def context(self, request: Request, body_bytes: int) -> dict[str, RequestContext]:
        if "context" not in self.types:
            return {}
        return {"context": RequestContext(body_bytes, request.is_disconnected)}

    async def decode(
        self, body: bytearray, request: Request, background: BackgroundQueue
    ) -> Any:
        assert self.decoder is not None
        if len(body) <= LARGE_BODY:
            return self.decoder.decode(body)
        with background.place(1 + len(body) // BODY_BYTES_PER_UNIT):
            return await background.run(
                partial(self.decoder.decode, body), request.is_disconnected
            )

    def response(self, result: Any) -> Response:
        if result is None:
            return Response(status_code=self.status)
        if self.media_type == HTML:
            return page_response(result)
        content = ENCODER.encode(result) if self.media_type == JSON else result
        return Response(content, self.status, media_type=self.media_type)


def check_content_type(request: Request, accepted: Sequence[str]) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in accepted and not kind.endswith("+json"):
        sent = kind[:100] or "of no type"
        raise Refused(415, f"the body must be JSON (application/json), not {sent}")
