"""`posrec serve`: check the options, bind the address, and keep the worker processes running.

Each worker is a uvicorn server on a socket that is already bound. Several workers are started, replaced when they die,
and stopped by `run_workers`. uvicorn's own supervisor replaces a dead worker at once, however often it dies, kills a
worker that does not answer within seconds, which a large run takes to load, and has one listening socket for all
workers, over which connections spread less evenly (docs/performance.md). Here every worker listens on a socket of its
own with SO_REUSEPORT, once its run is loaded, and Linux spreads new connections over these sockets.
"""

import asyncio
import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
import uvicorn

from posrec.device import THREADS
from posrec.errors import InputError, not_installed
from posrec.io import RUN, require_folder, scratch_folder
from posrec.recommend.session import ListedIds
from posrec.server.feedback import FeedbackFiles
from posrec.server.http.access import allowed_hosts
from posrec.server.http.connection import Connection, check_all
from posrec.server.item_columns import read_columns
from posrec.server.json_log import log_as_json, log_event, log_seldom
from posrec.server.session_store import SQLITE, SqliteSessions, open_store, password_in
from posrec.server.settings import KEY_VARIABLE, STORE_VARIABLE, ServerSettings

WORKER_FILES = 128  # that a worker needs beside its connections: libraries, the run, the session store
FEWEST_CONNECTIONS = 32
BACKLOG = 4096
NO_FILES = "no more files can be opened, so new connections are closed at once; raise the limit (ulimit -n)"
GRACE_PERIOD = 20  # seconds to finish open requests when the server is stopped
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a worker that died soon after its start is started again
SOON = 60.0  # seconds
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported
POLARS_THREADS = "POLARS_MAX_THREADS"  # polars reads it when it is imported
ARGUMENTS_START = 47  # the field of /proc/PID/stat, counted from 0, that has the address of the first argument


def serve(settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serve until SIGTERM or Ctrl-C. Wrong options raise an InputError before anything is started."""
    if find_spec("prometheus_client") is None:  # imported later: it then reads the environment
        raise not_installed("serving", "serve")
    hide([settings.api_key, password_in(settings.session_store or "")])
    for run in settings.runs:
        require_folder(Path(run), RUN)
    settings.code.check()
    for rules in filter(None, (settings.allow_file, settings.deny_file)):
        ListedIds(Path(rules))
    if settings.items_file is not None:
        os.environ.setdefault(POLARS_THREADS, "1")  # every worker reads the file, while others answer
        read_columns(Path(settings.items_file), None)
    if settings.feedback is not None:
        FeedbackFiles(Path(settings.feedback))
    if settings.session_store is not None:
        store = open_store(settings.session_store)
        if isinstance(store, SqliteSessions):
            store.check()
    settings = msgspec.structs.replace(
        settings,
        workers=workers,
        connections=most_connections(),
        allow_host=allowed_hosts(host, settings.allow_host),
    )
    with take_port(host, port, workers) as bound, shared_folder(workers) as shared:
        # A worker computes with one thread: sessions are small, and more threads would only compete for the cores.
        os.environ[THREADS] = "1"
        os.environ.pop(METRICS_FOLDER, None)
        log_as_json()
        address, actual = bound.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log_event("listening", url=f"http://{shown}:{actual}", workers=workers, connections=settings.connections)
        if settings.session_store is None and shared:
            file = f"{shared}/sessions.sqlite"
            log_event("sessions are stored until the server stops; --session-store stores them for longer", file=file)
            settings = msgspec.structs.replace(settings, session_store=SQLITE + file)
        if workers == 1:
            run_worker(bound, settings)
        else:
            run_workers(address, actual, msgspec.structs.replace(settings, shared=shared))


@contextmanager
def shared_folder(workers: int) -> Iterator[str]:
    """A folder for the files that all workers use, which is removed in the end, or by the next server after a kill.

    It is in the folder of temporary files. Where there is none, a single worker does without.
    """
    with ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir()) / "posrec-server"
            folder = str(stack.enter_context(scratch_folder(place, mode=0o700)))
        except OSError as error:
            if workers > 1:
                raise InputError(f"several workers need a temporary folder ({error}); name one in TMPDIR") from None
            folder = ""
        yield folder


def hide(secrets: Iterable[str | None]) -> None:
    """Overwrite the secrets where they stand in this process's command line, and forget their variables.

    Other users of the machine can read a command line, but not the environment of this process; the processes that
    this one starts inherit neither. The command line is part of the process's own memory; only Linux says where.
    """
    for name in (KEY_VARIABLE, STORE_VARIABLE):
        os.environ.pop(name, None)
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        line = Path("/proc/self/cmdline").read_bytes()
        start = int(Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()[ARGUMENTS_START - 2])
        for secret in filter(None, secrets):
            encoded = os.fsencode(secret)
            place = line.find(encoded)
            while place >= 0:
                ctypes.memset(start + place, ord("*"), len(encoded))
                place = line.find(encoded, place + len(encoded))


def most_connections() -> int:
    """The connections that a worker may have open, by the limit on open files, which is raised as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return 1 << 20
    if most < WORKER_FILES + FEWEST_CONNECTIONS:
        needed = WORKER_FILES + FEWEST_CONNECTIONS
        raise InputError(f"a process may open {most} files here; the server needs {needed} or more (ulimit -n)")
    return most - WORKER_FILES


def take_port(host: str, port: int, workers: int) -> socket.socket:
    """The listening socket of a single worker. Several workers have their own; this one then only reserves the port."""
    try:
        if workers == 1:
            bound = bind(host, port, shared=False)
            bound.listen(BACKLOG)
            return bound
        if port:  # a second server could share the port unnoticed
            bind(host, port, shared=False).close()
        return bind(host, port, shared=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is taken; choose another with --port") from None
        raise InputError(f"cannot listen on {host}:{port} ({error.strerror or error})") from None
    except OverflowError:
        raise InputError(f"--port {port}: must be between 0 and 65535") from None


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


def can_open_files() -> bool:
    """The event loop closes a connection for which it has no file, and does not say so."""
    try:
        os.close(os.dup(0))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.checking = asyncio.create_task(self.keep_checking())  # until the event loop ends

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
            await loop.connect_accepted_socket(
                partial(Connection, self.config, self.server_state, self.lifespan.state), client
            )
        await super().shutdown(sockets)

    async def keep_checking(self) -> None:
        while True:
            if not can_open_files():
                log_seldom(NO_FILES)
            check_all([one for one in self.server_state.connections if isinstance(one, Connection)])
            await asyncio.sleep(1)


def run_worker(bound: socket.socket, settings: ServerSettings) -> None:
    """Serve in this process until SIGTERM or Ctrl-C."""
    from posrec.server.routes import application

    # The application logs that it serves before uvicorn listens, so it listens itself. Connections wait in the kernel
    # until uvicorn accepts them.
    create = partial(application, settings, listen=partial(bound.listen, BACKLOG))
    config = uvicorn.Config(
        create,
        factory=True,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_PERIOD,
        backlog=BACKLOG,
        ws="none",
    )
    server = Server(config)
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
    from prometheus_client.multiprocess import mark_process_dead

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
                mark_process_dead(worker.pid, settings.shared)  # type: ignore[no-untyped-call]  # nothing waits in it
                place.died(now)
                about = {"worker": worker.pid, "code": worker.returncode, "pause": place.pause}
                log_event("a worker died and is replaced", logging.ERROR, **about)
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
    line = [sys.executable, "-m", "posrec.server.serve", host, str(port)]
    environment = {**os.environ, METRICS_FOLDER: settings.shared}
    worker = subprocess.Popen(line, stdin=subprocess.PIPE, env=environment, process_group=0)
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
