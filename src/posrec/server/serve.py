"""`posrec serve`: bind the address, start the workers, and take the whole down again without losing a request."""

import errno
import os
import socket
import tempfile
from pathlib import Path

import msgspec

from posrec.errors import InputError, not_installed
from posrec.io import RUN, require_folder
from posrec.server.log import log_as_json, tell
from posrec.server.processes import BACKLOG, run_worker, run_workers
from posrec.server.session_store import SessionStore
from posrec.server.settings import ServerSettings, default_cache


def serve(settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serve until told to stop (SIGTERM, Ctrl-C). What the user got wrong is told before anything is started."""
    try:
        import litestar  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise not_installed("serving", "serve") from None
    require_folder(Path(settings.run), RUN)
    if settings.session_store is not None:
        SessionStore(settings.session_store)
    listening = bound(host, port)
    with tempfile.TemporaryDirectory(prefix="posrec-serve-") as shared:
        cache = settings.cache or str(default_cache())
        msgspec.structs.replace(settings, shared=shared, cache=cache, workers=workers).to_environment()
        # A worker computes with one thread; more only get in each other's way.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        log_as_json()
        address, actual = listening.getsockname()[:2]
        tell("listening", url=f"http://{address}:{actual}", workers=workers)
        if workers == 1:
            run_worker(listening)
        else:
            run_workers(listening, workers)


def bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is taken; name another with --port") from None
        raise InputError(f"can't listen on {host}:{port} ({error.strerror or error})") from None
    except OverflowError:
        raise InputError(f"--port {port}: it must be from 0 to 65535") from None
    listening.set_inheritable(True)
    return listening
