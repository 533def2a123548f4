"""`posrec serve`: check the options, bind the address and start the workers."""

import errno
import os
import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

from posrec.device import THREADS
from posrec.errors import InputError, not_installed
from posrec.io import RUN, require_folder
from posrec.server.log import log_as_json, log_event
from posrec.server.processes import BACKLOG, bind, run_worker, run_workers
from posrec.server.session_store import SessionStore
from posrec.server.settings import ServerSettings, default_cache


def serve(settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serve until SIGTERM or Ctrl-C. Wrong options raise an InputError before anything is started."""
    # Looked for and not imported: prometheus_client reads its settings from the environment when it is imported.
    if not all(map(find_spec, ("litestar", "uvicorn", "prometheus_client"))):
        raise not_installed("serving", "serve")
    require_folder(Path(settings.run), RUN)
    settings.code.check()
    if settings.session_store is not None:
        SessionStore(settings.session_store)
    with take_port(host, port, workers) as bound, tempfile.TemporaryDirectory(prefix="posrec-serve-") as shared:
        cache = settings.cache or str(default_cache())
        msgspec.structs.replace(settings, shared=shared, cache=cache, workers=workers).to_environment()
        # A worker computes with one thread: sessions are small, and more threads would only compete for the cores.
        os.environ[THREADS] = "1"
        log_as_json()
        address, actual = bound.getsockname()[:2]
        log_event("listening", url=f"http://{address}:{actual}", workers=workers)
        if workers == 1:
            run_worker(bound)
        else:
            run_workers(address, actual, workers)


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
