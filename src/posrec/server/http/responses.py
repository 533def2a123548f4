"""Answers as Starlette's responses: JSON, pages, and {"error": "one plain sentence"} for errors."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from posrec.errors import InputError, RunFailed
from posrec.server.errors import Refused
from posrec.server.json_log import LOG, log_seldom
from posrec.server.schemas import ErrorAnswer

JSON = "application/json"
NO_MEMORY = (
    "the server has no memory left; requests are refused or lost until it has some"
)
HTTP_ERRORS = {
    404: "there is no such page; /docs lists the available ones",
    405: "this method is not allowed here; /docs shows which one is",
}
# Pages load nothing, run no script but their own, are shown in no frame, and speak to this server
# alone.
PAGE_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)


def page_response(content: str) -> Response:
    hashes = []
    for script in SCRIPT.findall(content):
        digest = hashlib.sha256(script.encode()).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    scripts = " ".join(hashes) or "'none'"
    headers = {
        "Content-Security-Policy": PAGE_POLICY.format(scripts=scripts),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(content, headers=headers)


def refusal(
    status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    if status == 503:
        headers = {"Retry-After": "1"}  # seconds
    return Response(msgspec.json.encode(ErrorAnswer(sentence)), status, headers, JSON)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer where no operation has the path."""
    await refusal(404, HTTP_ERRORS[404])(scope, receive, send)


def not_allowed(methods: Iterable[str]) -> Response:
    return refusal(405, HTTP_ERRORS[405], {"Allow": ", ".join(methods)})


def error_response(error: Exception) -> Response:
    match error:
        case Refused():
            return refusal(error.status, error.sentence)
        case InputError():
            return refusal(400, str(error))
        case RunFailed():  # such as the model of a run that was replaced meanwhile
            return refusal(503, str(error))
        case msgspec.ValidationError():
            return refusal(422, f"the request is not valid: {error}")
        case msgspec.DecodeError() | UnicodeDecodeError():
            return refusal(400, f"the body is not valid JSON: {error}")
        case RecursionError():
            return refusal(400, "the body is nested too deeply")
    if is_out_of_memory(error):
        log_seldom(NO_MEMORY)
        return refusal(503, NO_MEMORY)
    LOG.error("unexpected error", exc_info=error)
    return refusal(500, "internal error; the server log has the details")


def is_out_of_memory(error: Exception) -> bool:
    """numpy and torch have errors of their own."""
    is_pythons = isinstance(error, MemoryError | SystemError)
    return is_pythons or "allocate memory" in str(error)
