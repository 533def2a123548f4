"""Whatever goes wrong is answered as {"error": "one plain sentence"} with a fitting status."""

import logging
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, SerializationException, ValidationException

from posrec.errors import InputError
from posrec.serving.batcher import Overloaded
from posrec.serving.server_log import LOG
from posrec.serving.session_store import StoreDown
from posrec.serving.wire import Problem


class NotReady(RuntimeError):
    """No run is loaded."""


class NoSuchThing(LookupError):
    """What was asked for by name is not there."""


def problem(status: int, sentence: str, retry_after: int | None = None) -> Response[Problem]:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response(Problem(sentence), status_code=status, headers=headers, media_type=MediaType.JSON)


def invalid(_: Request[Any, Any, Any], error: ValidationException) -> Response[Problem]:
    """A body or parameter that does not fit: 400 where it is no JSON at all, else 422."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, msgspec.ValidationError):
            return problem(422, f"the request does not fit: {cause}")
        if isinstance(cause, msgspec.DecodeError | SerializationException | UnicodeDecodeError):
            return problem(400, f"the body is no JSON: {cause.__cause__ or cause}")
        cause = cause.__cause__ or cause.__context__
    what = "; ".join(f"{one.get('key', 'the body')}: {one['message']}" for one in error.extra or [] if "message" in one)
    return problem(422, f"the request does not fit: {what or error.detail}")


def of_litestar(_: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    sentence = {404: "there is nothing at this address; /docs tells what there is", 405: "not with this method"}
    return problem(error.status_code, sentence.get(error.status_code, error.detail or "the request is no good"))


def unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    LOG.error("unforeseen error", exc_info=error, extra={"fields": {"path": request.url.path}})
    return problem(500, "something went wrong here; the log tells more")


HANDLERS: dict[Any, Any] = {
    ValidationException: invalid,
    SerializationException: invalid,
    HTTPException: of_litestar,
    InputError: lambda _, error: problem(400, str(error)),
    NoSuchThing: lambda _, error: problem(404, str(error)),
    NotReady: lambda _, error: problem(503, str(error), retry_after=1),
    Overloaded: lambda _, error: problem(503, "too many requests wait already; try again shortly", retry_after=1),
    StoreDown: lambda _, error: problem(503, "the session store does not answer; send the whole session", retry_after=1),
    Exception: unforeseen,
}
