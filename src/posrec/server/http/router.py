"""From a request to the function that answers it, and from what it returns to the answer.

A route's function says in its annotations what it needs: `data` is the body, `query` the parameters of the query, both
msgspec's types, and the part of the path in braces has its own name. OpenAPI's document is made from the same
annotations (openapi.py).
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from posrec.server.http.messages import JSON, Answer, MethodNotAllowed, NotFound, Request

ENCODER = msgspec.json.Encoder()
REPEATED_SLASHES = re.compile("//+")

Handler = Callable[..., Awaitable[Any]]


class Route:
    """`path` such as /v1/similar/{item}; without a `summary` the route is not part of the OpenAPI document.

    `errors` are the statuses of its errors, for the document. `admit` is called before a body is decoded, and raises
    Overloaded where the request would be refused in the end.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str = "",
        status: int = 200,
        media_type: bytes = JSON,
        errors: tuple[int, ...] = (),
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self.method, self.path, self.handler, self.summary, self.status = method, path, handler, summary, status
        self.media_type, self.errors, self.admit = media_type, errors, admit
        self.types: dict[str, Any] = get_type_hints(handler, include_extras=True)
        self.decoder = msgspec.json.Decoder(self.types["data"]) if "data" in self.types else None
        self.query_type = self.types.get("query")
        in_braces = re.search(r"{(\w+)}", path)
        self.parameter = None if in_braces is None else in_braces[1]

    async def answer(self, request: Request, value: str | None) -> Answer:
        """`value` is that of the parameter in the path."""
        arguments: dict[str, Any] = {} if self.parameter is None else {self.parameter: value}
        if self.decoder is not None:
            body = await request.body()
            self.admit()
            arguments["data"] = self.decoder.decode(body)
        if self.query_type is not None:
            given = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
            arguments["query"] = msgspec.convert(given, self.query_type, strict=False)
        result = await self.handler(**arguments)
        if self.media_type == JSON:
            return Answer(self.status, ENCODER.encode(result))
        return Answer(self.status, result.encode() if isinstance(result, str) else result, self.media_type)


class Router:
    """All routes. A path has at most one part in braces, which matches anything without a slash."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.by_path: dict[str, dict[str, Route]] = {}
        self.patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []

    def get(self, path: str, summary: str = "", **options: Any) -> Callable[[Handler], Handler]:
        return self.add("GET", path, summary, **options)

    def post(self, path: str, summary: str = "", **options: Any) -> Callable[[Handler], Handler]:
        return self.add("POST", path, summary, **options)

    def add(self, method: str, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
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

    async def answer(self, request: Request) -> Answer:
        methods, value = self.find(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)  # uvicorn leaves out HEAD's body
        if route is not None:
            return await route.answer(request, value)
        allowed = (*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS")
        if request.method == "OPTIONS":
            return Answer(204, headers=((b"allow", ", ".join(allowed).encode()),))
        raise MethodNotAllowed(*allowed)

    def find(self, path: str) -> tuple[dict[str, Route], str | None]:
        """The routes of a path by method, and the value of its parameter. Several slashes count as one."""
        if path not in self.by_path:
            path = REPEATED_SLASHES.sub("/", path).rstrip("/") or "/"
        if path in self.by_path:
            return self.by_path[path], None
        for pattern, methods in self.patterns:
            if match := pattern.fullmatch(path):
                return methods, match[1]
        raise NotFound("there is no such page; /docs lists the available ones")
