"""`posrec serve`: check the options, bind the address and start the workers."""

import errno
import os
import resource
import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

from posrec.device import THREADS
from posrec.errors import InputError, not_installed
from posrec.io import RUN, require_folder
from posrec.server.feedback import FeedbackFiles
from posrec.server.http.access import allowed_hosts
from posrec.server.http.credentials import hide, password_in
from posrec.server.json_log import log_as_json, log_event
from posrec.server.live.rule_files import RuleFiles
from posrec.server.session_store import SessionStore
from posrec.server.settings import ServerSettings

OWN_FILES = 128  # that a worker needs beside its connections: libraries, the run, the session store
FEWEST_CONNECTIONS = 32


def serve(settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serve until SIGTERM or Ctrl-C. Wrong options raise an InputError before anything is started."""
    # Looked for and not imported: prometheus_client reads its settings from the environment when it is imported.
    if not all(map(find_spec, ("uvicorn", "httptools", "prometheus_client"))):
        raise not_installed("serving", "serve")
    from posrec.server.http.workers import METRICS_FOLDER, run_worker, run_workers

    hide([settings.api_key, password_in(settings.session_store)])
    for run in (settings.run, *settings.more_runs):
        require_folder(Path(run), RUN)
    settings.code.check()
    RuleFiles(settings.allow_file, settings.deny_file).read()
    if settings.feedback is not None:
        FeedbackFiles(Path(settings.feedback))
    if settings.session_store is not None:
        SessionStore(settings.session_store)
    settings = msgspec.structs.replace(
        settings, workers=workers, connections=most_connections(), allow_host=allowed_hosts(host, settings.allow_host),
    )  # fmt: skip
    with take_port(host, port, workers) as bound:
        # A worker computes with one thread: sessions are small, and more threads would only compete for the cores.
        os.environ[THREADS] = "1"
        os.environ.pop(METRICS_FOLDER, None)
        log_as_json()
        address, actual = bound.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log_event("listening", url=f"http://{shown}:{actual}", workers=workers, connections=settings.connections)
        if workers == 1:
            run_worker(bound, settings)
        else:
            with tempfile.TemporaryDirectory(prefix="posrec-workers-") as shared:
                run_workers(address, actual, msgspec.structs.replace(settings, shared=shared))


def most_connections() -> int:
    """The connections that a worker may have open, by the limit on open files, which is raised as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return 1 << 20
    if most < OWN_FILES + FEWEST_CONNECTIONS:
        needed = OWN_FILES + FEWEST_CONNECTIONS
        raise InputError(f"a process may open {most} files here; the server needs {needed} or more (ulimit -n)")
    return most - OWN_FILES


def take_port(host: str, port: int, workers: int) -> socket.socket:
    """The listening socket of a single worker. Several workers have their own; this one then only reserves the port."""
    from posrec.server.http.workers import BACKLOG, bind

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
