"""The temporary folder in which several workers keep their counters."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "posrec-workers-"


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that is removed at the end, and locked until then.

    systemd's cleaner of temporary folders spares a folder that is locked. The lock also tells a folder in use from one
    that a killed server left behind; those are removed first.
    """
    parent = Path(tempfile.gettempdir())
    for leftover in parent.glob(f"{PREFIX}*"):
        remove_unused(leftover)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(OSError):  # another server took it for a leftover before it was locked
            lock = locked(folder)
            if folder.is_dir():
                break
            os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def locked(folder: Path) -> int:
    """An open handle that holds the lock of a folder; raises OSError where another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def remove_unused(folder: Path) -> None:
    with suppress(OSError):  # it is in use, or belongs to someone else
        lock = locked(folder)
        try:
            shutil.rmtree(folder)
        finally:
            os.close(lock)
