"""`posrec serve`: check the options, and start granian, which has the workers and speaks HTTP.

Every worker listens on a socket of its own with SO_REUSEPORT, once its run is loaded, and Linux
spreads new connections over these sockets.
"""

import errno
import logging.config
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
from posrec.server.json_log import LOG_CONFIG, log_event
from posrec.server.session_store import SQLITE, SqliteSessions, open_store
from posrec.server.settings import (
    KEY_VARIABLE,
    SETTINGS_VARIABLE,
    STORE_VARIABLE,
    ServeOptions,
)

START_METHOD = "spawn"  # a fork of a process with threads may hang
# The files that a worker opens beside its connections: libraries, the run, the session store.
WORKER_FILES = 128
FEWEST_CONNECTIONS = 32
HEAD_BYTES = 32 << 10  # of a request's line and headers
# Seconds without a whole head. Proxies keep idle connections for 60, and must find them open.
KEEP_ALIVE = 75
GRACE_PERIOD = 20  # seconds to finish open requests when the server is stopped
# Variables that prometheus_client and polars read when they are imported.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
POLARS_THREADS = "POLARS_MAX_THREADS"


def serve(settings: ServeOptions) -> None:
    """Wrong options raise an InputError before anything is started."""
    if (
        find_spec("prometheus_client") is None
    ):  # workers import it, with their environment
        raise not_installed("serving", "serve")
    check_certificate(settings)
    check_files(settings)
    with take_port(settings.host, settings.port) as bound, shared_folder() as shared:
        address, port = bound.getsockname()[:2]
        logging.config.dictConfig(LOG_CONFIG)
        shown = url(settings, address, port)
        log_event("listening", url=shown, workers=settings.workers)
        settings = msgspec.structs.replace(
            settings,
            allow_host=allowed_hosts(settings.host, settings.allow_host),
            session_store=settings.session_store or temporary_store(shared),
            shared=shared,
        )
        set_environment(settings)
        multiprocessing.set_start_method(START_METHOD, force=True)
        run_granian(settings, address, port)


def url(settings: ServeOptions, address: str, port: int) -> str:
    scheme = "http" if settings.tls_certificate is None else "https"
    host = f"[{address}]" if ":" in address else address
    return f"{scheme}://{host}:{port}"


def run_granian(settings: ServeOptions, address: str, port: int) -> None:
    http1 = HTTP1Settings(
        header_read_timeout=1000 * KEEP_ALIVE, max_buffer_size=HEAD_BYTES
    )
    server = Granian(
        "posrec.server.worker:create_application",
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
        backlog=4096,
        backpressure=most_connections(),
        ssl_cert=as_path(settings.tls_certificate),
        ssl_key=as_path(settings.tls_key),
        log_level=LogLevels.warning,
        log_dictconfig=LOG_CONFIG,
    )
    server.serve()


def as_path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def check_certificate(settings: ServeOptions) -> None:
    certificate = settings.tls_certificate
    key = settings.tls_key
    if (certificate is None) != (key is None):
        raise InputError("TLS needs both --tls-certificate and --tls-key")
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise InputError(
            f"--tls-certificate {certificate} and --tls-key {key} can't be used "
            f"({error.strerror or error})"
        ) from None


def check_files(settings: ServeOptions) -> None:
    for run in settings.runs:
        require_folder(Path(run), RUN)
    settings.code.check()
    for rules in (settings.allow_file, settings.deny_file):
        if rules is not None:
            ListedIds(Path(rules))
    if settings.items_file is not None:
        # Every worker reads the file, while others answer.
        os.environ.setdefault(POLARS_THREADS, "1")
        read_columns(Path(settings.items_file), None, **settings.item_times)
    if settings.feedback is not None:
        FeedbackFiles(Path(settings.feedback))
    if settings.session_store is not None:
        store = open_store(settings.session_store)
        if isinstance(store, SqliteSessions):
            store.check()


def set_environment(settings: ServeOptions) -> None:
    """Of the workers, who inherit it. Unlike a command line, only this user can read it."""
    os.environ.pop(KEY_VARIABLE, None)
    os.environ.pop(STORE_VARIABLE, None)
    # Sessions are small, and more threads would only compete for the cores.
    os.environ[THREADS] = "1"
    os.environ[METRICS_FOLDER] = settings.shared
    os.environ[SETTINGS_VARIABLE] = msgspec.json.encode(settings).decode()


@contextmanager
def shared_folder() -> Iterator[str]:
    """Removed in the end, or by the next server after a kill."""
    try:
        name = Path(tempfile.gettempdir()) / "posrec-server"
        with scratch_folder(name, mode=0o700) as folder:
            yield str(folder)
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
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if files == resource.RLIM_INFINITY:
        return 1 << 20
    needed = WORKER_FILES + FEWEST_CONNECTIONS
    if files < needed:
        raise InputError(
            f"a process may open {files} files here; the server needs {needed} or more (ulimit -n)"
        )
    return files - WORKER_FILES


def take_port(host: str, port: int) -> socket.socket:
    """A socket that reserves the address; the workers' own sockets share it."""
    try:
        if port:  # a second server could share the port unnoticed
            bind(host, port, shared=False).close()
        return bind(host, port, shared=True)
    except OSError as error:
        reason = f"cannot listen on {host}:{port} ({error.strerror or error})"
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} is taken; choose another with --port"
        raise InputError(reason) from None


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
