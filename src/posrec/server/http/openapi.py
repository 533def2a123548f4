"""The OpenAPI document, made from the routes and msgspec's types, and /docs: a page of it with requests to try."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

import posrec
from posrec.server.http.access import PUBLIC_PATHS
from posrec.server.http.application import Route
from posrec.server.http.messages import JSON
from posrec.server.schemas import ErrorAnswer

PAGES = Path(__file__).parent.parent / "page"
# What /docs takes from the playground, so that both look alike.
SHARED = {"style": "<style>(.*?)</style>", "icon": '(<link rel="icon"[^\n]*>)', "logo": "<h1>(<svg.*?</svg>)"}
REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    400: "Not valid HTTP or JSON, or a value can't be used.",
    401: "The API key is missing or wrong.",
    403: "Web pages of this origin are not allowed.",
    404: "There is no such item, or no session store.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The Content-Type is not JSON.",
    422: "A field is missing, of the wrong type or out of range.",
    431: "The address and headers are too large.",
    503: "Overloaded, or not ready; try again after Retry-After seconds.",
}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of all routes that have a summary."""
    public = [route for route in routes if route.summary]
    bodies = [kind for route in public for name, kind in route.types.items() if name in ("data", "return")]
    _, schemas = msgspec.json.schema_components([*bodies, ErrorAnswer], ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in public:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "posrec", "version": posrec.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def operation(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {str(route.status): {"description": "Done; there is no body."}}
    if route.types["return"] is not type(None):
        answer = content(route.types["return"], route.media_type)
        answers = {str(route.status): {"description": "The answer.", "content": answer}}
    for status in errors_of(route):
        answers[str(status)] = {"description": ERRORS[status], "content": content(ErrorAnswer)}
    result: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "responses": answers,
        "parameters": parameters(route),
    }
    if "data" in route.types:
        result["requestBody"] = {"required": True, "content": content(route.types["data"])}
    return result


def errors_of(route: Route) -> list[int]:
    """The statuses of errors: those of every request, and those of what this route has."""
    possible = {
        401: route.path not in PUBLIC_PATHS,
        403: route.writes,
        404: route.not_found,
        415: route.decoder is not None,
        422: route.decoder is not None or route.query_type is not None,
    }
    return [status for status in ERRORS if possible.get(status, True)]


def content(kind: Any, media_type: bytes = JSON) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    return {media_type.decode().partition(";")[0]: {"schema": schema}}


def parameters(route: Route) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    if route.parameter is not None:
        result.append({"name": route.parameter, "in": "path", "required": True, "schema": {"type": "string"}})
    if route.query_type is not None:
        _, schemas = msgspec.json.schema_components([route.query_type])
        for name, schema in schemas[route.query_type.__name__]["properties"].items():
            result.append({"name": name, "in": "query", "required": False, "schema": schema})
    return result


def docs_page(openapi: dict[str, Any], first: str, second: str) -> str:
    """`first` and `second`: the ids of two items, for the examples. The page loads nothing from other servers."""
    from jinja2 import Environment
    from markupsafe import Markup

    playground = (PAGES / "index.html").read_text(encoding="utf-8")
    shared = {name: Markup(re.findall(pattern, playground, re.DOTALL)[0]) for name, pattern in SHARED.items()}
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["name"] = lambda reference: reference.rpartition("/")[2]
    template = environment.from_string((PAGES / "docs.html").read_text(encoding="utf-8"))
    return template.render(document=openapi, examples=examples(first, second), playground=shared)


def examples(first: str, second: str) -> dict[str, tuple[str, Any]]:
    """The path of a route -> an address to try, and the body; None where there is none."""
    return {
        "/v1/recommend": ("/v1/recommend", {"session": [first, second], "k": 5}),
        "/v1/recommend/batch": ("/v1/recommend/batch", {"sessions": [[first], [second], []], "k": 2}),
        "/v1/explain": ("/v1/explain", {"session": [first], "item": second}),
        "/v1/feedback": ("/v1/feedback", {"answer": "the id of an answer", "event": "shown", "items": [first, second]}),
        "/v1/sessions/{session_id}/click": ("/v1/sessions/anna/click", {"item": first, "k": 5}),
        "/v1/sessions/{session_id}": ("/v1/sessions/anna", None),
        "/v1/similar/{item}": (f"/v1/similar/{quote(first, safe='')}?k=5", None),
        "/v1/items": ("/v1/items?limit=5", None),
        "/v1/run": ("/v1/run", None),
    }
