"""The body of a request, within limits on its size, its time, and all bodies together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from posrec.server.errors import Refused

MOST_HELD = 64 << 20  # bytes of all bodies that a worker receives or answers
TOO_LARGE = "the body is too large"
TOO_MANY = "too many bodies are being received; try again shortly"


class BodyReader:
    """`most` is the size of one body in bytes, `seconds` the time for it."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.held = 0  # bytes, of all requests

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The bytes count as held until the block ends."""
        body = bytearray()
        try:
            await self.receive(request, body)
            yield body
        finally:
            self.held -= len(body)

    async def receive(self, request: Request, body: bytearray) -> None:
        if int(request.headers.get("content-length", "0")) > self.most:
            raise Refused(413, TOO_LARGE)
        try:
            async with asyncio.timeout(self.seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > self.most:
                        raise Refused(413, TOO_LARGE)
                    if self.held > MOST_HELD:
                        raise Refused(503, TOO_MANY)
        except TimeoutError:
            raise Refused(
                408, f"the body was not received within {self.seconds:g} seconds"
            ) from None
        except ClientDisconnect:  # or the chunks are not valid, and the client listens
            raise Refused(400, "the body is incomplete or not valid HTTP") from None
