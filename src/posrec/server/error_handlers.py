"""Every error is answered as {"error": "one plain sentence"} with the HTTP status that fits."""

from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, SerializationException, ValidationException

from posrec.errors import InputError, RunFailed
from posrec.server.batching import Overloaded
from posrec.server.log import LOG
from posrec.server.schemas import ErrorAnswer
from posrec.server.session_store import StoreUnavailable


class NotReady(RuntimeError):
    """No run is loaded."""


class NotFound(LookupError):
    """The requested item, page or session store does not exist."""


class TooLarge(ValueError):
    """The body is longer than `--max-body` allows."""


class BodyTimeout(RuntimeError):
    """The body was not received within `--request-timeout`."""


ErrorResponse = tuple[int, str, int | None]  # status, sentence, seconds for the Retry-After header


def error_response(error: BaseException) -> ErrorResponse:
    """The answer to a request that raised this error."""
    match error:
        case TooLarge():
            return 413, "the body is too large", None
        case BodyTimeout():
            return 408, str(error), None
        case InputError():
            return 400, str(error), None
        case NotFound():
            return 404, str(error.args[0]), None
        case NotReady():
            return 503, str(error), 1
        case Overloaded():
            return 503, "too many requests are waiting; try again shortly", 1
        case RunFailed():  # the model of a run that was replaced meanwhile
            return 503, str(error), 1
        case StoreUnavailable():
            return 503, "the session store can't be used now; send the whole session instead", 1
        case msgspec.ValidationError():
            return 422, f"the request is not valid: {with_public_names(str(error))}", None
        case msgspec.DecodeError() | UnicodeDecodeError():
            return 400, f"the body is not valid JSON: {error}", None
        case RecursionError():
            return 400, "the body is nested too deeply", None
        case ValidationException() | SerializationException():
            return body_error_response(error)
        case HTTPException():
            known = {
                404: "there is no such page; /docs lists the available ones",
                405: "this method is not allowed here; /docs shows which one is",
                413: "the body is too large",
            }
            return error.status_code, known.get(error.status_code, error.detail or "the request is not valid"), None
    LOG.error("unexpected error", exc_info=error)
    return 500, "internal error; the server log has the details", None


def body_error_response(error: ValidationException | SerializationException) -> ErrorResponse:
    """Litestar wraps errors in a body or parameter: 400 where the body is not JSON, otherwise 422."""
    cause = error.__cause__ or error.__context__
    if "missing required field `data`" in str(cause):  # Litestar's name for a body
        return 400, "the body is not valid JSON: it is empty", None
    while cause is not None:
        if isinstance(cause, msgspec.MsgspecError | UnicodeDecodeError | RecursionError):
            return error_response(cause)
        cause = cause.__cause__ or cause.__context__
    extra: Any = getattr(error, "extra", None) or []
    what = "; ".join(f"{one.get('key', 'the body')}: {one['message']}" for one in extra if "message" in one)
    if not what and isinstance(error, SerializationException):
        return 400, f"the body is not valid JSON: {error.detail}", None
    return 422, f"the request is not valid: {what or getattr(error, 'detail', error)}", None


def with_public_names(sentence: str) -> str:
    """Litestar names a query parameter by the argument of the route's function; clients know it by another name."""
    return sentence.replace("`$.wanted`", "`$.query`").replace("`$.only`", "`$.filter`")


def handle_error(_: Request[Any, Any, Any], error: Exception) -> Response[ErrorAnswer]:
    status, sentence, retry_after = error_response(error)
    headers = dict(getattr(error, "headers", None) or {})  # a 405 lists the allowed methods
    headers |= {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response(ErrorAnswer(sentence), status_code=status, headers=headers, media_type=MediaType.JSON)


HANDLED = (
    ValidationException, SerializationException, HTTPException, InputError, RunFailed, NotFound, NotReady, Overloaded,
)  # fmt: skip
HANDLERS: dict[Any, Any] = dict.fromkeys((*HANDLED, StoreUnavailable, Exception), handle_error)
