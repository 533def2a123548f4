"""The worker processes: each is a uvicorn server on a socket that is already bound.

Several workers are started, replaced when they die, and stopped by `run_workers`. uvicorn's own supervisor replaces a
dead worker at once, however often it dies, kills a worker that does not answer within seconds, which a large run takes
to load, and has one listening socket for all workers, over which connections spread less evenly (docs/performance.md).
Here every worker listens on a socket of its own with SO_REUSEPORT, once its run is loaded, and Linux spreads new
connections over these sockets.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import uvicorn

from posrec.server.http.guard import KEEP_ALIVE, Connection
from posrec.server.json_log import log_as_json, log_event
from posrec.server.settings import ServerSettings

BACKLOG = 4096
GRACE_PERIOD = 20  # seconds to finish open requests when the server is stopped
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a worker that died soon after its start is started again
SOON = 60.0  # seconds
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported


def bind(host: str, port: int, shared: bool) -> socket.socket:
    """A socket that does not listen yet; where `shared`, other sockets may be bound to the same address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound.bind((host, port))
    return bound


class Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait in the kernel first; it would reset them when the socket is closed."""
        loop, clients = asyncio.get_running_loop(), []
        for bound in sockets or []:
            with suppress(BlockingIOError):
                while True:
                    clients.append(bound.accept()[0])
        for server in self.servers:
            server.close()
        for client in clients:
            client.setblocking(False)
            await loop.connect_accepted_socket(self.connection, client)
        await super().shutdown(sockets)

    def connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def check_connections(self) -> None:
        now = time.monotonic()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, Connection)
            connection.check(now)


def run_worker(bound: socket.socket, settings: ServerSettings) -> None:
    """Serve in this process until SIGTERM or Ctrl-C."""
    from posrec.server.app import application

    # The application logs that it serves before uvicorn listens, so it listens itself. Connections wait in the kernel
    # until uvicorn accepts them.
    create = partial(application, settings, listen=partial(bound.listen, BACKLOG))
    config = uvicorn.Config(
        create, factory=True, http=Connection, log_config=None, access_log=False, server_header=False,
        proxy_headers=False, lifespan="on", timeout_graceful_shutdown=GRACE_PERIOD,
        timeout_keep_alive=KEEP_ALIVE, backlog=BACKLOG, ws="none", timeout_notify=1,
    )  # fmt: skip
    server = Server(config)
    config.callback_notify = server.check_connections
    # uvicorn raises the signal again after it has stopped; the default action would skip all clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run(sockets=[bound])


@dataclass
class Place:
    """One of the workers, and what is known about those that died in its place."""

    worker: subprocess.Popen[bytes]
    started: float
    pause: float = 0.0  # before the last restart
    due: float | None = None  # when to start a new worker, where this one has died

    def died(self, now: float) -> None:
        """Pause before the next worker, twice as long as before if it died soon after its start."""
        self.pause = min(LONGEST_PAUSE, 2 * self.pause or SHORTEST_PAUSE) if now - self.started < SOON else 0.0
        self.due = now + self.pause


def run_workers(host: str, port: int, settings: ServerSettings) -> None:
    """Keep the workers alive until SIGTERM or Ctrl-C, then let them finish their requests."""
    from posrec.server.metrics import forget_queue

    shared = Path(settings.shared)
    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    places = [Place(start_worker(host, port, settings), time.monotonic()) for _ in range(settings.workers)]
    while not stopping.wait(0.2):
        for place in places:
            now, worker = time.monotonic(), place.worker
            if place.due is None and worker.poll() is not None:
                # A cleaner of temporary folders may have removed it. The counts of the living workers then are lost.
                shared.mkdir(parents=True, exist_ok=True)
                forget_queue(worker.pid, shared)
                place.died(now)
                log_event("a worker died and is replaced", logging.ERROR, worker=worker.pid, code=worker.returncode,
                          pause=place.pause)  # fmt: skip
            if place.due is not None and now >= place.due:
                place.worker, place.started, place.due = start_worker(host, port, settings), now, None
    workers = [place.worker for place in places]
    for worker in workers:
        worker.terminate()
    end = time.monotonic() + GRACE_PERIOD + 5
    for worker in workers:
        try:
            worker.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    log_event("all workers stopped")


def start_worker(host: str, port: int, settings: ServerSettings) -> subprocess.Popen[bytes]:
    # In a process group of its own, so that Ctrl-C reaches the parent alone, which then stops the workers.
    worker = subprocess.Popen(
        [sys.executable, "-m", "posrec.server.http.workers", host, str(port)],
        stdin=subprocess.PIPE, env={**os.environ, METRICS_FOLDER: settings.shared}, process_group=0,
    )  # fmt: skip
    assert worker.stdin is not None
    with worker.stdin:  # much less than a pipe holds, so this never waits
        worker.stdin.write(msgspec.json.encode(settings))
    return worker


def follow_parent() -> None:
    """Stop this worker when its parent is gone: nothing would stop or replace it any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    log_as_json()
    follow_parent()
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerSettings)
    run_worker(bind(sys.argv[1], int(sys.argv[2]), shared=True), given)
