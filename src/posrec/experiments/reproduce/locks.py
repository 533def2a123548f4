"""Several processes, on one machine or on several with one folder, share the cells of an experiment."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def taken(path: Path) -> Iterator[bool]:
    """Whether `path` is this process's for the block; it is not where another process holds it.

    The lock is the operating system's and goes with its process, so a killed one holds nothing. A file system without
    locks lets everybody have everything.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not locked(handle) or not is_of(path, handle):
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_of(path: Path, handle: int) -> bool:
    """Whether it is still the file of that name: who had it before may have removed it between opening and locking."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
