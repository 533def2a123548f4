"""uvicorn's server, with a door that shares connections between workers."""

import asyncio
import socket
from typing import Any

import uvicorn

from posrec.serving.door import Door, Share


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
