"""Workers that share a listening socket share its connections evenly.

Clients keep connections open, so whichever worker wakes first would accept nearly all of them and answer everything
while the others have nothing to do. A worker that has more connections than another therefore waits a moment before it
accepts the next one; if the connection is still there then, no other worker had time for it.
"""

import asyncio
import errno
import logging
import mmap
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvicorn

from posrec.server.log import log_event

HESITATION = 0.002  # seconds
ABSENT = 1 << 62  # more than anybody has
AFTER_ERROR = 1.0  # seconds
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # what may be there again in a while


class Share:
    """How many connections every worker has, in a file that all of them map into memory."""

    def __init__(self, path: Path, place: int) -> None:
        self.place = place
        with path.open("r+b") as file:
            self.counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.leave()

    @staticmethod
    def make(path: Path, workers: int) -> None:
        path.write_bytes(bytes(8 * workers))

    def leave(self) -> None:
        """A worker that takes nobody is no reason to hesitate."""
        self.note(ABSENT)

    def note(self, mine: int) -> None:
        self.counts[self.place] = mine

    def is_ahead(self, mine: int) -> bool:
        """Whether another worker has clearly fewer: one more, or an eighth of many more, is let pass."""
        self.note(mine)
        least = min(self.counts)
        return mine > least + 1 + least // 8


class Door:
    """Takes connections one at a time; `count` says how many there are, `enter` begins to serve one.

    It has of asyncio's servers what uvicorn asks of them.
    """

    def __init__(
        self,
        listening: socket.socket,
        share: Share,
        count: Callable[[], int],
        enter: Callable[[socket.socket], Coroutine[Any, Any, Any]],
    ) -> None:
        self.listening, self.share, self.count, self.enter = listening, share, count, enter
        self.loop = asyncio.get_running_loop()
        self.entering: set[asyncio.Task[Any]] = set()
        self.closed = False
        listening.setblocking(False)
        share.note(count())
        self.watch()

    def watch(self) -> None:
        self.loop.add_reader(self.listening.fileno(), self.knocked)

    def knocked(self) -> None:
        if self.share.is_ahead(self.count() + len(self.entering)):
            self.turn_away(HESITATION)
        else:
            self.take()

    def turn_away(self, seconds: float) -> None:
        """Hear no knocking for so long; then take whoever is still there."""
        self.loop.remove_reader(self.listening.fileno())
        self.loop.call_later(seconds, self.look_again)

    def look_again(self) -> None:
        if not self.closed:
            self.watch()
            self.take()

    def take(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError as error:  # most often another worker was quicker, or the client has left
            if error.errno in SCARCE:
                log_event("no connection can be taken for a second", logging.WARNING, reason=str(error))
                self.turn_away(AFTER_ERROR)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self.enter(connection))
        self.entering.add(task)
        task.add_done_callback(self.entering.discard)

    def close(self) -> None:
        self.closed = True
        self.share.leave()
        self.loop.remove_reader(self.listening.fileno())

    async def wait_closed(self) -> None:
        """Until those are in that were let in."""
        await asyncio.gather(*self.entering, return_exceptions=True)


class SharingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, share: Share) -> None:
        super().__init__(config)
        self.share = share

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # nobody listens yet
        assert sockets is not None
        self.servers: list[Any] = [Door(one, self.share, self.open_connections, self.enter) for one in sockets]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever is at the door comes in first, to be told with the others."""
        for door in self.servers:
            door.close()
            await door.wait_closed()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if not self.should_exit:
            self.share.note(self.open_connections())  # where some were closed, nobody knocked
        return await super().on_tick(counter)

    def open_connections(self) -> int:
        return len(self.server_state.connections)

    async def enter(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self.protocol, connection)

    def protocol(self) -> Any:
        """One of uvicorn's for a connection, as its own servers make it."""
        state, kind = self.lifespan.state, self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=state)  # type: ignore[call-arg]
