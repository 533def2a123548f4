"""The body of a request, within limits on its size, its time, and all bodies together."""

import asyncio

from starlette.requests import Request

from posrec.server.errors import Refused

MOST_HELD = 64 << 20  # bytes of all bodies that a worker receives or answers
PLAIN_BODY = 4 << 10  # bytes; up to this size a body is accepted beside any others
# Every chunk costs time, and six bytes on the wire: most bytes of a body come in larger chunks.
SMALL_CHUNKS = 1000
SMALL = 64  # bytes
TOO_LARGE = "the body is too large"
TOO_MANY = "too many bodies are being received; try again shortly"


class BodyReader:
    """`most` is the size of one body in bytes, `seconds` the time for it."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.held = 0  # bytes, of all requests

    async def receive(self, request: Request, body: bytearray) -> None:
        """Fill `body`. Its bytes count until `release`, also if this fails."""
        if int(request.headers.get("content-length", "0")) > self.most:
            raise Refused(413, TOO_LARGE)
        try:
            async with asyncio.timeout(self.seconds):
                await self.receive_chunks(request, body)
        except TimeoutError:
            raise Refused(
                408, f"the body was not received within {self.seconds:g} seconds"
            ) from None

    async def receive_chunks(self, request: Request, body: bytearray) -> None:
        chunks = 0
        is_complete = False
        while not is_complete:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                # Or the chunks are not valid, and the client listens.
                raise Refused(400, "the body is incomplete or not valid HTTP")
            chunk = message.get("body", b"")
            is_complete = not message.get("more_body", False)
            body += chunk
            self.held += len(chunk)
            chunks += 1
            if len(body) > self.most:
                raise Refused(413, TOO_LARGE)
            if self.held > MOST_HELD and len(body) > PLAIN_BODY:
                raise Refused(503, TOO_MANY)
            if chunks > SMALL_CHUNKS + len(body) // SMALL:
                raise Refused(400, "the body comes in too many small chunks")

    def release(self, body: bytearray) -> None:
        self.held -= len(body)
