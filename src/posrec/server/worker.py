"""One worker: a uvicorn server in this process, on a socket that is already bound."""

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from posrec.server.connection import Connection
from posrec.server.settings import ServerSettings
from posrec.server.timeouts import KEEP_ALIVE, ConnectionTimeout

BACKLOG = 4096
GRACE_PERIOD = 20  # seconds to finish open requests when the server is stopped


class Server(uvicorn.Server):
    """Stops listening as soon as it is told to stop, rather than up to 0.1 s later."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop, self.sockets = asyncio.get_running_loop(), sockets or []
        self.accepting: set[asyncio.Task[Any]] = set()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.started:
            self.loop.call_soon_threadsafe(self.stop_listening)

    def stop_listening(self) -> None:
        for bound in self.sockets:
            self.accept_waiting(bound)
        for server in self.servers:
            server.close()

    def accept_waiting(self, bound: socket.socket) -> None:
        """Accept the connections that wait in the kernel; it would reset them when the socket is closed."""
        with suppress(OSError):  # none is left, or the socket was closed by an earlier signal
            while True:
                client, _ = bound.accept()
                client.setblocking(False)
                task = self.loop.create_task(self.loop.connect_accepted_socket(self.connection, client))
                self.accepting.add(task)
                task.add_done_callback(self.accepting.discard)

    def connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state, self.loop)


def run_worker(bound: socket.socket, settings: ServerSettings) -> None:
    """Serve in this process until SIGTERM or Ctrl-C."""
    from posrec.server.app import application

    timeout = ConnectionTimeout(settings.request_timeout)

    async def check_connections() -> None:
        timeout.check(server.server_state.connections)  # type: ignore[arg-type]  # `http` below makes them

    # The application logs that it serves before uvicorn listens, so it listens itself. Connections wait in the kernel
    # until uvicorn accepts them.
    create = partial(application, settings, listen=partial(bound.listen, BACKLOG))
    config = uvicorn.Config(
        create, factory=True, http=Connection, log_config=None, access_log=False, server_header=False,
        proxy_headers=False, lifespan="on", timeout_graceful_shutdown=GRACE_PERIOD,
        timeout_keep_alive=KEEP_ALIVE, backlog=BACKLOG, ws="none", callback_notify=check_connections, timeout_notify=1,
    )  # fmt: skip
    server = Server(config)
    # uvicorn raises the signal again after it has stopped; the default action would skip all clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run(sockets=[bound])
