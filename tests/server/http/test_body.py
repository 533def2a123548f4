"""All bodies that are received at the same time share a limit."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from posrec.server.errors import Refused
from posrec.server.http.body import MOST_HELD, BodyReader

MEGABYTE = bytes(1 << 20)


def unfinished(*chunks: bytes) -> Request:
    """A request whose body goes on after these chunks, and never ends."""
    waiting = list(chunks)

    async def receive() -> Message:
        if not waiting:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": True}

    return Request({"type": "http", "headers": []}, receive)


def test_unfinished_bodies_together_take_64_mb() -> None:
    async def story() -> None:
        reader = BodyReader(2 << 20, 3600)
        bodies = [bytearray() for _ in range(40)]
        tasks = [
            asyncio.create_task(reader.receive(unfinished(MEGABYTE, MEGABYTE), body))
            for body in bodies
        ]
        await asyncio.sleep(0.1)
        refused = [task for task in tasks if task.done()]
        assert reader.held == sum(map(len, bodies)) <= MOST_HELD + len(refused) << 20
        for task in refused:
            with pytest.raises(Refused) as reason:
                task.result()
            assert reason.value.status == 503
        for body in bodies[32:]:
            reader.release(body)
        small = asyncio.create_task(reader.receive(unfinished(b"{}"), bytearray()))
        await asyncio.sleep(0.1)
        assert not small.done()  # it is received on
        for task in (*tasks, small):
            task.cancel()

    asyncio.run(story())
