"""A request and its answer as the routes see them, and the answer to every error: {"error": "one plain sentence"}.

ASGI's messages are received and sent here alone.
"""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.server.json_log import LOG, NO_MEMORY, log_seldom
from posrec.server.schemas import ErrorAnswer

Header = tuple[bytes, bytes]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

JSON, TEXT, HTML = b"application/json", b"text/plain; charset=utf-8", b"text/html; charset=utf-8"
CLOSE = (b"connection", b"close")
RETRY_AFTER = (b"retry-after", b"1")  # seconds; sent with every 503
TOO_LARGE = "the body is too large"
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


class Disconnected(ConnectionError):
    """The client has left before its request was complete or answered."""


class Request:
    """One request over ASGI. Several slashes in its path count as one, and one at its end does not count."""

    def __init__(self, scope: dict[str, Any], receive: Receive, max_body: int) -> None:
        self.scope, self.receive, self.max_body = scope, receive, max_body
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        if "//" in self.path or self.path.endswith("/"):
            self.path = REPEATED_SLASHES.sub("/", self.path).rstrip("/") or "/"
        self.headers: dict[bytes, bytes] = dict(scope["headers"])  # of a repeated header, the last
        self.size = 0  # bytes of the body
        # Whether the client has gone, so that nothing needs to be computed for it; set by guard.py.
        self.has_left: Callable[[], bool] = scope.get("has_left", lambda: False)
        # Whether the whole body was received, as far as the headers announce one.
        self.complete = b"transfer-encoding" not in self.headers and self.headers.get(b"content-length", b"0") == b"0"

    def check_path(self) -> None:
        """Refuse a path that is not UTF-8: all its wrong bytes become the same character in `path`, so that the id of
        one session would stand for another."""
        if "\ufffd" in self.path:
            check_encoding(self.scope["raw_path"])

    def query(self) -> dict[str, str]:
        check_encoding(self.scope["query_string"])
        return dict(parse_qsl(self.scope["query_string"].decode(), keep_blank_values=True))

    async def body(self) -> bytes:
        """The whole body; a request is refused as soon as the limit on its size is reached, or announced: then no
        `100 Continue` is sent."""
        if int(self.headers.get(b"content-length", 0)) > self.max_body:
            raise Refused(413, TOO_LARGE)
        body = b""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            if "refused" in self.scope:  # by guard.py, because it was not sent in time
                self.complete = True  # nothing more is read
                raise self.scope["refused"]
            body += bytes(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if len(body) > self.max_body:
                raise Refused(413, TOO_LARGE)
            if self.complete:
                self.size = len(body)
                return body

    async def discard_body(self) -> None:
        """Read the rest of a refused body until the client leaves, or guard.py closes the connection: a client that is
        cut off at once can't read the answer."""
        while not self.complete:
            message = await self.receive()
            self.complete = not message.get("more_body", False)


def check_encoding(address: bytes) -> None:
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        raise Refused(400, "the address must be percent-encoded UTF-8") from None


async def send_answer(send: Send, request: Request, answer: Answer) -> None:
    """Where the client still sends its body, the connection is closed after the answer."""
    headers = [*answer.headers]
    if answer.status != 204:
        headers += [(b"content-type", answer.media_type), (b"content-length", b"%d" % len(answer.content))]
    if answer.status == 408 or not request.complete:
        headers.append(CLOSE)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if not request.complete:
        await send({"type": "http.response.body", "body": answer.content, "more_body": True})
        await request.discard_body()
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.body", "body": answer.content})


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
