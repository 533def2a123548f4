"""Whatever goes wrong is answered as {"error": "one plain sentence"} with a fitting status."""

from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, SerializationException, ValidationException

from posrec.errors import InputError
from posrec.server.batching import Overloaded
from posrec.server.log import LOG
from posrec.server.schemas import Problem
from posrec.server.session_store import StoreDown


class NotReady(RuntimeError):
    """No run is loaded."""


class NoSuchThing(LookupError):
    """What was asked for by name is not there."""


class TooLarge(ValueError):
    """The body is longer than is accepted."""


Said = tuple[int, str, int | None]  # status, sentence, seconds to wait before trying again


def said(error: BaseException) -> Said:
    """What a client is told of an error."""
    match error:
        case TooLarge():
            return 413, "the body is too large", None
        case InputError():
            return 400, str(error), None
        case NoSuchThing():
            return 404, str(error.args[0]), None
        case NotReady():
            return 503, str(error), 1
        case Overloaded():
            return 503, "too many requests wait already; try again shortly", 1
        case StoreDown():
            return 503, "the session store does not answer; send the whole session", 1
        case msgspec.ValidationError():
            return 422, f"the request does not fit: {in_their_names(str(error))}", None
        case msgspec.DecodeError() | UnicodeDecodeError():
            return 400, f"the body is no JSON: {error}", None
        case RecursionError():
            return 400, "the body is nested too deeply", None
        case ValidationException() | SerializationException():
            return of_body(error)
        case HTTPException():
            known = {
                404: "there is nothing at this address; /docs tells what there is",
                405: "not with this method",
                413: "the body is too large",
            }
            return error.status_code, known.get(error.status_code, error.detail or "the request is no good"), None
    LOG.error("unforeseen error", exc_info=error)
    return 500, "something went wrong here; the log tells more", None


def of_body(error: ValidationException | SerializationException) -> Said:
    """Litestar wraps what is wrong with a body or parameter: 400 where it is no JSON at all, else 422."""
    cause = error.__cause__ or error.__context__
    if "missing required field `data`" in str(cause):  # Litestar's name for a body
        return 400, "the body is no JSON: it is empty", None
    while cause is not None:
        if isinstance(cause, msgspec.MsgspecError | UnicodeDecodeError | RecursionError):
            return said(cause)
        cause = cause.__cause__ or cause.__context__
    extra: Any = getattr(error, "extra", None) or []
    what = "; ".join(f"{one.get('key', 'the body')}: {one['message']}" for one in extra if "message" in one)
    if not what and isinstance(error, SerializationException):
        return 400, f"the body is no JSON: {error.detail}", None
    return 422, f"the request does not fit: {what or getattr(error, 'detail', error)}", None


def in_their_names(sentence: str) -> str:
    """Litestar tells of a parameter by the name that the route's function has for it."""
    return sentence.replace("`$.wanted`", "`$.query`")


def problem(_: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    status, sentence, retry_after = said(error)
    headers = dict(getattr(error, "headers", None) or {})  # of a 405: which methods are allowed
    headers |= {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response(Problem(sentence), status_code=status, headers=headers, media_type=MediaType.JSON)


KINDS = (ValidationException, SerializationException, HTTPException, InputError, NoSuchThing, NotReady, Overloaded)
HANDLERS: dict[Any, Any] = dict.fromkeys((*KINDS, StoreDown, Exception), problem)
