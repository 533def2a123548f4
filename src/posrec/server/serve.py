"""`posrec serve`: check the options, and hand the address to granian, which has the worker
processes and speaks HTTP.

Every worker listens on a socket of its own with SO_REUSEPORT, once its run is loaded, and Linux
spreads new connections over these sockets.
"""

import errno
import multiprocessing
import os
import resource
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels

from posrec.device import THREADS
from posrec.errors import InputError, not_installed
from posrec.io import RUN, require_folder, scratch_folder
from posrec.recommend.session import ListedIds
from posrec.server.content.item_columns import read_columns
from posrec.server.feedback.writing import FeedbackFiles
from posrec.server.http.access import allowed_hosts
from posrec.server.json_log import LOG_CONFIG, log_as_json, log_event
from posrec.server.session_store import SQLITE, SqliteSessions, open_store
from posrec.server.settings import (
    KEY_VARIABLE,
    SETTINGS_VARIABLE,
    STORE_VARIABLE,
    Listening,
    ServerSettings,
)

APPLICATION = "posrec.server.worker:create_application"
START_METHOD = "spawn"  # a fork of a process with threads may hang
WORKER_FILES = 128  # that a worker needs beside its connections: libraries, the run, the session store
FEWEST_CONNECTIONS = 32
BACKLOG = 4096
HEAD_BYTES = 32 << 10  # of a request's line and headers
KEEP_ALIVE = 75  # seconds without a whole head; proxies keep idle connections for 60, and must find them open
GRACE_PERIOD = 20  # seconds to finish open requests when the server is stopped
METRICS_FOLDER = (
    "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported
)
POLARS_THREADS = "POLARS_MAX_THREADS"  # polars reads it when it is imported


def serve(settings: ServerSettings, listening: Listening) -> None:
    """Wrong options raise an InputError before anything is started."""
    if (
        find_spec("prometheus_client") is None
    ):  # imported later: it then reads the environment
        raise not_installed("serving", "serve")
    check_files(settings)
    check_certificate(listening)
    with take_port(listening.host, listening.port) as bound, shared_folder() as shared:
        address, port = bound.getsockname()[:2]
        log_as_json()
        url = f"{listening.scheme}://{f'[{address}]' if ':' in address else address}:{port}"
        log_event("listening", url=url, workers=settings.workers)
        settings = msgspec.structs.replace(
            settings,
            allow_host=allowed_hosts(listening.host, settings.allow_host),
            session_store=settings.session_store or temporary_store(shared),
            shared=shared,
        )
        set_environment(settings)
        multiprocessing.set_start_method(START_METHOD, force=True)
        run_granian(settings, listening, address, port)


def run_granian(
    settings: ServerSettings, listening: Listening, address: str, port: int
) -> None:
    http1 = HTTP1Settings(
        header_read_timeout=1000 * KEEP_ALIVE, max_buffer_size=HEAD_BYTES
    )
    server = Granian(
        APPLICATION,
        factory=True,
        interface=Interfaces.ASGI,
        address=address,
        port=port,
        workers=settings.workers,
        respawn_failed_workers=True,
        workers_kill_timeout=GRACE_PERIOD,
        http=HTTPModes.http1,
        http1_settings=http1,
        websockets=False,
        backlog=BACKLOG,
        backpressure=most_connections(),
        ssl_cert=listening.certificate,
        ssl_key=listening.key,
        log_level=LogLevels.warning,
        log_dictconfig=LOG_CONFIG,
    )
    server.serve()


def check_certificate(listening: Listening) -> None:
    if listening.certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                listening.certificate, listening.key
            )
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"--tls-certificate {listening.certificate} and --tls-key {listening.key} can't be used "
                f"({error.strerror or error})"
            ) from None


def check_files(settings: ServerSettings) -> None:
    for run in settings.runs:
        require_folder(Path(run), RUN)
    settings.code.check()
    for rules in filter(None, (settings.allow_file, settings.deny_file)):
        ListedIds(Path(rules))
    if settings.items_file is not None:
        os.environ.setdefault(
            POLARS_THREADS, "1"
        )  # every worker reads the file, while others answer
        read_columns(Path(settings.items_file), None)
    if settings.feedback is not None:
        FeedbackFiles(Path(settings.feedback))
    if settings.session_store is not None:
        store = open_store(settings.session_store)
        if isinstance(store, SqliteSessions):
            store.check()


def set_environment(settings: ServerSettings) -> None:
    """What the workers inherit. Only this user can read the environment of a process, unlike its
    command line."""
    for name in (KEY_VARIABLE, STORE_VARIABLE):
        os.environ.pop(name, None)
    os.environ[THREADS] = (
        "1"  # sessions are small, and more threads would only compete for the cores
    )
    os.environ[METRICS_FOLDER] = settings.shared
    os.environ[SETTINGS_VARIABLE] = msgspec.json.encode(settings).decode()


@contextmanager
def shared_folder() -> Iterator[str]:
    """Removed in the end, or by the next server after a kill."""
    try:
        folder = scratch_folder(
            Path(tempfile.gettempdir()) / "posrec-server", mode=0o700
        )
        with folder as path:
            yield str(path)
    except OSError as error:
        raise InputError(
            f"the server needs a temporary folder ({error}); name one in TMPDIR"
        ) from None


def temporary_store(shared: str) -> str:
    file = f"{shared}/sessions.sqlite"
    log_event(
        "sessions are stored until the server stops; --session-store stores them for longer",
        file=file,
    )
    return SQLITE + file


def most_connections() -> int:
    """Of a worker, by the limit on open files, which is raised as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return 1 << 20
    if most < WORKER_FILES + FEWEST_CONNECTIONS:
        needed = WORKER_FILES + FEWEST_CONNECTIONS
        raise InputError(
            f"a process may open {most} files here; the server needs {needed} or more (ulimit -n)"
        )
    return most - WORKER_FILES


def take_port(host: str, port: int) -> socket.socket:
    """A socket that reserves the address; the workers' own sockets share it."""
    try:
        if port:  # a second server could share the port unnoticed
            bind(host, port, shared=False).close()
        return bind(host, port, shared=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} is taken; choose another with --port"
            ) from None
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror or error})"
        ) from None
    except OverflowError:
        raise InputError(f"--port {port}: must be between 0 and 65535") from None


def bind(host: str, port: int, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound.bind((host, port))
    return bound
