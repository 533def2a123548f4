"""A request and its answer as the routes see them, and the answer to every error: {"error": "one plain sentence"}.

ASGI's messages are received and sent here alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from posrec.errors import InputError, RunFailed
from posrec.server.batching import Overloaded
from posrec.server.json_log import LOG
from posrec.server.schemas import ErrorAnswer
from posrec.server.session_store import StoreUnavailable
from posrec.server.settings import ServerSettings

Header = tuple[bytes, bytes]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

JSON, TEXT, HTML = b"application/json", b"text/plain; charset=utf-8", b"text/html; charset=utf-8"
CLOSE = (b"connection", b"close")


class NotReady(RuntimeError):
    """No run is loaded."""


class NotFound(LookupError):
    """The requested item, page or session store does not exist."""


class MethodNotAllowed(LookupError):
    """The path exists, but not for this method. `args` are the methods that are allowed."""


class TooLarge(ValueError):
    """The body is longer than `--max-body` allows."""


class BodyTimeout(RuntimeError):
    """The body was not received within `--request-timeout`."""


class Disconnected(ConnectionError):
    """The client has left before its request was complete."""


class Answer(NamedTuple):
    status: int
    content: bytes = b""
    media_type: bytes = JSON
    headers: tuple[Header, ...] = ()


class Request:
    """One request over ASGI."""

    def __init__(self, scope: dict[str, Any], receive: Receive, settings: ServerSettings) -> None:
        self.scope, self.receive, self.settings = scope, receive, settings
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])  # of a repeated header, the last
        # Whether the whole body was received, as far as the headers announce one.
        self.complete = b"transfer-encoding" not in self.headers and self.headers.get(b"content-length", b"0") == b"0"

    async def body(self) -> bytes:
        """The whole body. Raises TooLarge or BodyTimeout as soon as a limit is reached."""
        if "complete" in self.scope:  # set by guard.py; a timer would take as long as all other handling here
            return await self.read_body()
        seconds = self.settings.request_timeout
        try:
            async with asyncio.timeout(seconds):
                return await self.read_body()
        except TimeoutError:
            self.complete = True  # nothing more is read
            raise BodyTimeout(f"the body was not received within {seconds:g} seconds") from None

    async def read_body(self) -> bytes:
        body = b""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            body += bytes(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if len(body) > self.settings.max_body:
                raise TooLarge
            if self.complete:
                return body

    async def discard_body(self) -> None:
        """Read the rest of a refused body, up to the timeout: a client that is cut off can't read the answer."""
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                while not self.complete:
                    message = await self.receive()
                    self.complete = not message.get("more_body", False)
        except TimeoutError:
            self.complete = True


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


def refusal(status: int, sentence: str, *headers: Header) -> Answer:
    return Answer(status, msgspec.json.encode(ErrorAnswer(sentence)), headers=headers)


def try_again(sentence: str) -> Answer:
    return refusal(503, sentence, (b"retry-after", b"1"))


def error_answer(error: Exception) -> Answer:
    """The answer to a request that raised this error."""
    match error:
        case TooLarge():
            return refusal(413, "the body is too large")
        case BodyTimeout():
            return refusal(408, str(error))
        case InputError():
            return refusal(400, str(error))
        case NotFound():
            return refusal(404, str(error.args[0]))
        case MethodNotAllowed():
            allowed = ", ".join(error.args).encode()
            return refusal(405, "this method is not allowed here; /docs shows which one is", (b"allow", allowed))
        case Overloaded():
            return try_again("too many requests are waiting; try again shortly")
        case NotReady() | RunFailed():  # RunFailed: the model of a run that was replaced meanwhile
            return try_again(str(error))
        case StoreUnavailable():
            return try_again("the session store can't be used now; send the whole session instead")
        case msgspec.ValidationError():
            return refusal(422, f"the request is not valid: {error}")
        case msgspec.DecodeError() | UnicodeDecodeError():
            return refusal(400, f"the body is not valid JSON: {error}")
        case RecursionError():
            return refusal(400, "the body is nested too deeply")
    LOG.error("unexpected error", exc_info=error)
    return refusal(500, "internal error; the server log has the details")
