"""The OpenAPI document, and /docs: a page of it with requests to try."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from posrec.server.http.access import PUBLIC_PATHS
from posrec.server.http.operation import Operation
from posrec.server.http.responses import JSON
from posrec.server.schemas import ErrorAnswer
from posrec.version import __version__

DOCS = Path(__file__).parents[1] / "page" / "docs.html"
PLAYGROUND = DOCS.with_name("index.html")
# What /docs takes from the playground.
SHARED = {
    "style": "<style>(.*?)</style>",
    "icon": '(<link rel="icon"[^\n]*>)',
    "logo": "<h1>(<svg.*?</svg>)",
}
TOO_LONG = 431  # granian answers it, without a body
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
    TOO_LONG: "The address and headers are too large.",
    503: "Overloaded, or not ready; try again after Retry-After seconds.",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    bodies: list[Any] = []
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        if operation.summary:
            bodies.append(operation.types.get("data"))
            bodies.append(operation.types["return"])
            path = paths.setdefault(operation.path, {})
            path[operation.method.lower()] = described(operation)
    bodies.append(ErrorAnswer)
    _, schemas = msgspec.json.schema_components(bodies, ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "posrec", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def described(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done; there is no body."}
    if operation.types["return"] is not type(None):
        schema = content(operation.types["return"], operation.media_type)
        answer = {"description": "The answer.", "content": schema}
    answers = {str(operation.status): answer}
    for status in errors_of(operation):
        error: dict[str, Any] = {"description": ERRORS[status]}
        if status != TOO_LONG:
            error["content"] = content(ErrorAnswer)
        answers[str(status)] = error
    result: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.handler.__name__,
        "responses": answers,
        "parameters": parameters(operation),
    }
    if "data" in operation.types:
        body = content(operation.types["data"])
        result["requestBody"] = {"required": True, "content": body}
    return result


def errors_of(operation: Operation) -> list[int]:
    possible = {
        401: operation.path not in PUBLIC_PATHS,
        403: operation.writes,
        404: operation.not_found or operation.writes,
        415: operation.decoder is not None,
        422: operation.decoder is not None or operation.query_type is not None,
    }
    return [status for status in ERRORS if possible.get(status, True)]


def content(kind: Any, media_type: str = JSON) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    return {media_type: {"schema": schema}}


def parameters(operation: Operation) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for name in re.findall(r"{(\w+)}", operation.path):
        schema = {"type": "string"}
        result.append({"name": name, "in": "path", "required": True, "schema": schema})
    if operation.query_type is not None:
        _, schemas = msgspec.json.schema_components([operation.query_type])
        fields = schemas[operation.query_type.__name__]["properties"]
        for name, schema in fields.items():
            result.append(
                {"name": name, "in": "query", "required": False, "schema": schema}
            )
    return result


def docs_page(openapi: dict[str, Any], first: str, second: str) -> str:
    """`first` and `second`: the ids of two items, for the examples."""
    from jinja2 import Environment
    from markupsafe import Markup

    playground = PLAYGROUND.read_text(encoding="utf-8")
    shared = {
        name: Markup(re.findall(pattern, playground, re.DOTALL)[0])
        for name, pattern in SHARED.items()
    }
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["name"] = lambda reference: reference.rpartition("/")[2]
    template = environment.from_string(DOCS.read_text(encoding="utf-8"))
    return template.render(
        document=openapi, examples=examples(first, second), playground=shared
    )


def examples(first: str, second: str) -> dict[str, tuple[str, Any]]:
    """By the path of a route: an address to try, and its body or None."""
    answer = "the id of an answer"
    click = {"item": first, "k": 5}
    bodies = {
        "/v1/recommend": {"session": [first, second], "k": 5},
        "/v1/recommend/batch": {"sessions": [[first], [second], []], "k": 2},
        "/v1/rank": {"session": [first], "candidates": [first, second]},
        "/v1/explain": {"session": [first], "item": second},
        "/v1/feedback": {"answer": answer, "event": "shown", "items": [first, second]},
    }
    return {
        **{path: (path, body) for path, body in bodies.items()},
        "/v1/sessions/{session_id}/click": ("/v1/sessions/anna/click", click),
        "/v1/sessions/{session_id}": ("/v1/sessions/anna", None),
        "/v1/similar/{item}": (f"/v1/similar/{quote(first, safe='')}?k=5", None),
        "/v1/items": ("/v1/items?limit=5", None),
        "/v1/run": ("/v1/run", None),
    }
