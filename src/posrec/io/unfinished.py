"""Unfinished files and folders: the hidden names under which everything is written before it gets its own name; and
locks between processes, which the operating system releases when their process ends.

`runs/first` is written as `runs/.first.unfinished-1a2b3c4d` and renamed when it is complete. A killed process leaves
the unfinished one behind; the next write into the same folder removes it.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

UNFINISHED = re.compile(r"\.(?P<name>.+)\.unfinished-[0-9a-f]{8}(?P<replaced>-replaced)?", re.DOTALL)
REPLACED = "-replaced"  # the end of the name of a folder that is being replaced, see folders.py


@contextmanager
def temporary(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield what `create` made beside `path`, locked while the block runs; remove it if the block fails.

    The lock distinguishes a file that is being written from one that a killed process left behind: the operating
    system releases the lock with the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    unfinished, lock = create_locked(path, create)
    try:
        yield unfinished
    except BaseException as error:
        remove(unfinished)
        # Name what the user asked for, not the temporary name, in errors such as a full disk.
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).startswith(str(unfinished))):
            error.filename = str(path)
        raise
    finally:
        os.close(lock)


def create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """An unfinished file or folder beside `path`, and the handle that locks it. Until it is locked, another writer may
    take it for a leftover and remove it; then another one is made."""
    while True:
        unfinished = path.with_name(f".{path.name}.unfinished-{secrets.token_hex(4)}")
        create(unfinished)
        with suppress(FileNotFoundError):
            lock = os.open(unfinished, os.O_RDONLY)
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if unfinished.exists():
                return unfinished, lock
            os.close(lock)


@contextmanager
def scratch_folder(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty folder beside `path`, for files that are needed on the way to it; it is always removed."""
    with temporary(path, partial(Path.mkdir, mode=mode)) as folder:
        yield folder
        remove(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files and folders that killed writers left in `folder`.

    Each is removed while it is locked, so that a writer that has just created it notices and starts again.
    """
    for leftover in folder.glob(".*.unfinished-*"):
        if (found := UNFINISHED.fullmatch(leftover.name)) is None:
            continue
        with suppress(OSError):  # its writer is alive, or it belongs to someone else
            handle = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if found["replaced"]:
                    restore(leftover, folder / found["name"])
                else:
                    remove(leftover)
            finally:
                os.close(handle)


def restore(replaced: Path, path: Path) -> None:
    """Give a folder its name back if its writer was killed before it could give the name to the new one."""
    with locked(path.parent):
        if path.exists() or path.is_symlink():
            remove(replaced)
        else:
            replaced.rename(path)


@contextmanager
def locked(folder: Path, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Wait until no other process is giving a name to something in `folder`, and keep them waiting.

    `shared` is for readers: they wait for writers and keep them waiting, but not each other. Without `wait`, the block
    begins at once, and is told whether the folder is free.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that can be written to but not listed
        yield True
        return
    try:
        is_free = True
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            is_free = False
        except OSError:  # not every file system has locks
            pass
        yield is_free
    finally:
        os.close(handle)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock `path` for the block; False where another process holds it."""
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        # Before the release: filelock refuses a lock whose file was removed meanwhile.
        path.unlink(missing_ok=True)
        lock.release()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the content is on the disk, so that a rename never comes before it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
