"""A worker process of `posrec serve`. granian starts it, replaces it when it dies, and stops it."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import msgspec
from starlette.routing import Router

from posrec.server.settings import SETTINGS_VARIABLE, ServeOptions

STARTS = "starts"  # a file of the shared folder: when each worker was started
SOON = 60.0  # seconds
PAUSE = 6.0  # seconds


def create_application() -> Router:
    """granian calls it before the worker listens."""
    sent = os.environ.pop(SETTINGS_VARIABLE)
    settings = msgspec.json.decode(sent, type=ServeOptions)
    pause_after_a_death(Path(settings.shared), settings.workers)
    threading.Thread(target=stop_with_parent, daemon=True).start()
    from posrec.server.application import application  # loads ONNX Runtime or torch

    return application(settings)


def pause_after_a_death(shared: Path, workers: int) -> None:
    """Wait if another worker was started a moment ago: it died, and this one may die too. granian
    ends the server when a worker dies within 5.5 seconds of its replacement."""
    # A cleaner of temporary folders may have removed it.
    shared.mkdir(parents=True, exist_ok=True)
    now = time.monotonic()
    with (shared / STARTS).open("a+") as file:
        file.seek(0)
        earlier = [float(line) for line in file]
        file.write(f"{now}\n")
    if len(earlier) >= workers and now - max(earlier) < SOON:
        time.sleep(PAUSE)


def stop_with_parent() -> None:
    """After the parent was killed, nothing would stop or replace this worker any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
