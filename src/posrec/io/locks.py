"""Locks between processes that last as long as their work. The operating system's lock ends with its process, so a
killed process holds nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock `path` for the block; False where another process holds it."""
    held = FileLock(path, blocking=False)
    try:
        held.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        # Before the release: filelock refuses a lock whose file was removed meanwhile.
        path.unlink(missing_ok=True)
        held.release()
