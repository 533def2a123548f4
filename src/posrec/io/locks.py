"""Locks between processes that last as long as their work. The operating system's lock ends with its process, so a
killed process holds nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock `path` for the block, once no other process holds it."""
    held = FileLock(path)
    held.acquire()
    with released_after(held):
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock `path` for the block; False where another process holds it."""
    held = FileLock(path, blocking=False)
    try:
        held.acquire()
    except Timeout:
        yield False
        return
    with released_after(held):
        yield True


@contextmanager
def released_after(held: FileLock) -> Iterator[None]:
    """Release the lock, and remove its file, after the block."""
    try:
        yield
    finally:
        # Before the release: filelock refuses a lock whose file was removed meanwhile.
        Path(held.lock_file).unlink(missing_ok=True)
        held.release()
