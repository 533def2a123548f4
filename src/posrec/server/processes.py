"""Several worker processes on one listening socket: started, replaced when they die, stopped together."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from posrec.server.balanced_acceptor import Share
from posrec.server.timeouts import KEEP_ALIVE, ConnectionTimeout
from posrec.server.log import log_as_json, log_event
from posrec.server.settings import ServerSettings

BACKLOG = 4096
FINISHING = 20  # seconds that requests under way have when the server is stopped
SOCKET, PLACE = "POSREC_SERVER_SOCKET", "POSREC_SERVER_PLACE"
SHARE = "connections"  # a file in the folder that the workers share
PAUSE = 1.0  # seconds before a worker that died at once is started again


def run_worker(listening: socket.socket, place: int | None = None) -> None:
    """This process answers until it is told to stop; `place` is its number among those that share the socket."""
    import uvicorn

    settings = ServerSettings.from_environment()
    connections = ConnectionTimeout(settings.request_timeout)

    async def check() -> None:
        connections.check(server.server_state.connections)

    config = uvicorn.Config(
        "posrec.server.app:create", factory=True, log_config=None, access_log=False, server_header=False,
        lifespan="on", timeout_graceful_shutdown=FINISHING, timeout_keep_alive=KEEP_ALIVE, backlog=BACKLOG, ws="none",
        callback_notify=check, timeout_notify=1,
    )  # fmt: skip
    if place is None:
        server = uvicorn.Server(config)
    else:
        from posrec.server.balanced_acceptor import SharingServer

        server = SharingServer(config, Share(Path(settings.shared) / SHARE, place))
    server.run(sockets=[listening])


def run_workers(listening: socket.socket, number: int) -> None:
    """Keep `number` workers alive until told to stop (SIGTERM, Ctrl-C), then let them finish."""
    from posrec.server.metrics import forget_queue

    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    share = Path(ServerSettings.from_environment().shared) / SHARE
    Share.make(share, number)
    workers = [(start(listening, place), time.monotonic()) for place in range(number)]
    while not stopping.wait(0.2):
        for place, (worker, began) in enumerate(workers):
            if worker.poll() is None:
                continue
            forget_queue(worker.pid, share.parent)
            Share(share, place).leave()
            log_event("a worker died and is replaced", logging.ERROR, worker=worker.pid, code=worker.returncode)
            if time.monotonic() - began < PAUSE:
                stopping.wait(PAUSE)
            workers[place] = (start(listening, place), time.monotonic())
    for worker, _ in workers:
        worker.terminate()
    end = time.monotonic() + FINISHING + 5
    for worker, _ in workers:
        try:
            worker.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    log_event("all workers stopped")


def start(listening: socket.socket, place: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, SOCKET: str(listening.fileno()), PLACE: str(place)}
    # A group of its own: Ctrl-C reaches the parent alone, and that tells the workers.
    return subprocess.Popen(
        [sys.executable, "-m", "posrec.server.processes"], pass_fds=[listening.fileno()], env=environment,
        process_group=0,
    )  # fmt: skip


def follow_parent() -> None:
    """A worker whose parent is gone stops as well: nobody would look after it."""
    parent = os.getppid()

    def looking() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=looking, daemon=True).start()


if __name__ == "__main__":
    log_as_json()
    follow_parent()
    run_worker(socket.socket(fileno=int(os.environ[SOCKET])), int(os.environ[PLACE]))
