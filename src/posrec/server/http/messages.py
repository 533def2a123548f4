"""A request and its answer as the routes see them, and the answer to every error: {"error": "one plain sentence"}."""

import base64
import hashlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.server.json_log import LOG, NO_MEMORY, log_seldom
from posrec.server.schemas import ErrorAnswer

Header = tuple[bytes, bytes]

JSON, TEXT, HTML = b"application/json", b"text/plain; charset=utf-8", b"text/html; charset=utf-8"
RETRY_AFTER = (b"retry-after", b"1")  # seconds; sent with every 503
BODY_TOO_LARGE = "the body is too large"
REPEATED_SLASHES = re.compile("//+")
# Pages load nothing, run no script but their own, are shown in no frame, and speak to this server alone.
PAGE_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SCRIPT = re.compile(rb"<script[^>]*>(.*?)</script>", re.DOTALL)


class Answer(NamedTuple):
    status: int
    content: bytes = b""
    media_type: bytes = JSON
    headers: tuple[Header, ...] = ()


class Refused(Exception):
    """The request is refused with this status, sentence and headers."""

    def __init__(self, status: int, sentence: str, *headers: Header) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


class Disconnected(Refused):
    """The client has left before its request was complete or answered. The status is only counted and logged."""

    def __init__(self) -> None:
        super().__init__(499, "the client has left")


class Request:
    """One request. `path` and `query` are those of its address, as they were sent; several slashes in the path count as
    one, and one at its end does not count. `has_left` says whether the client has gone, so that nothing needs to be
    computed for it.

    The connection fills the body, and keeps the answer until it is sent; the application finds the route.
    """

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: list[Header],
        version: str = "1.1",
        keep_alive: bool = True,
        has_left: Callable[[], bool] = lambda: False,
    ) -> None:
        self.method, self.query, self.all_headers, self.version = method, query, headers, version
        self.keep_alive, self.has_left = keep_alive, has_left
        self.began = time.perf_counter()
        self.path = unquoted(path)
        unquoted(query)  # refused where it is not UTF-8
        if "//" in self.path or self.path.endswith("/"):
            self.path = REPEATED_SLASHES.sub("/", self.path).rstrip("/") or "/"
        self.headers = dict(headers)  # of a repeated header, the last
        self.has_body = b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"
        self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"
        self.body, self.complete = bytearray(), False
        self.answer: Answer | None = None
        self.route: Any = None
        self.value: str | None = None  # of the parameter in the path


def unquoted(address: bytes) -> str:
    """All bytes that are not UTF-8 would become the same character, so that the id of one session would stand for
    another."""
    try:
        return (unquote_to_bytes(address) if b"%" in address else address).decode()
    except UnicodeDecodeError:
        raise Refused(400, "the address must be percent-encoded UTF-8") from None


def page(content: bytes) -> Answer:
    """An HTML page. Its scripts are allowed by their hashes."""
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in SCRIPT.findall(content)]
    policy = PAGE_POLICY.format(scripts=" ".join(f"'sha256-{digest}'" for digest in digests) or "'none'")
    headers = (
        (b"content-security-policy", policy.encode()),
        (b"x-frame-options", b"DENY"),
        (b"x-content-type-options", b"nosniff"),
    )
    return Answer(200, content, HTML, headers)


def refusal(status: int, sentence: str, *headers: Header) -> Answer:
    if status == 503:
        headers = (*headers, RETRY_AFTER)
    return Answer(status, msgspec.json.encode(ErrorAnswer(sentence)), headers=headers)


def error_answer(error: Exception) -> Answer:
    """The answer to a request that raised this error."""
    match error:
        case Refused():
            return refusal(error.status, error.sentence, *error.headers)
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
    """numpy and torch have errors of their own where there is no memory."""
    return isinstance(error, MemoryError | SystemError) or "allocate memory" in str(error)
