"""Unfinished files and folders, and locks between processes.

`runs/first` is written as `runs/.first.unfinished-1a2b3c4d` and renamed when it is complete. A
killed process, whose locks the operating system releases, leaves the unfinished one behind; the
next write into the same folder removes it.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from posrec.errors import InputError

UNFINISHED = re.compile(
    r"\.(?P<name>.+)\.unfinished-[0-9a-f]{8}(?P<replaced>-replaced)?", re.DOTALL
)
REPLACED = "-replaced"  # ends the name of a folder that is being replaced (folders.py)
LOCK = ".lock"  # in a folder of `one_writer`


@contextmanager
def temporary(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield what `create` made beside `path`; remove it if the block fails.

    Its lock distinguishes it from what a killed process left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    unfinished, handle = create_locked(path, create)
    try:
        yield unfinished
    except BaseException as error:
        remove(unfinished)
        # Name what the user asked for, not the temporary name, in errors such as a full disk.
        if isinstance(error, OSError) and (
            error.filename is None or str(error.filename).startswith(str(unfinished))
        ):
            error.filename = str(path)
        raise
    finally:
        os.close(handle)


def create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """An unfinished file or folder beside `path`, and the handle that locks it.

    Until it is locked, another writer may remove it as a leftover; then a new one is made.
    """
    while True:
        unfinished = path.with_name(f".{path.name}.unfinished-{secrets.token_hex(4)}")
        create(unfinished)
        with suppress(FileNotFoundError):
            handle = os.open(unfinished, os.O_RDONLY)
            if take_lock(handle, wait=False) and unfinished.exists():
                return unfinished, handle
            os.close(handle)


@contextmanager
def scratch_folder(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which is removed after the block."""
    with temporary(path, partial(Path.mkdir, mode=mode)) as folder:
        yield folder
        remove(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files and folders that killed writers left in `folder`.

    Each is locked meanwhile, so that a writer that has just created it notices.
    """
    for leftover in folder.glob(".*.unfinished-*"):
        if (match := UNFINISHED.fullmatch(leftover.name)) is None:
            continue
        with suppress(OSError):  # it belongs to someone else
            # Without O_NONBLOCK, a pipe would be waited for.
            handle = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if not is_abandoned(handle):
                    continue
                if match["replaced"]:
                    restore(leftover, folder / match["name"])
                else:
                    remove(leftover)
            finally:
                os.close(handle)


def restore(replaced: Path, path: Path) -> None:
    with locked(path.parent):
        if path.exists() or path.is_symlink():
            remove(replaced)
        else:
            replaced.rename(path)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock `folder` in the block; without `wait`, the block gets whether it has the lock.

    No file is written, so a folder that can only be read can be locked.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that can be written to but not listed
        yield True
        return
    try:
        yield take_lock(handle, wait)
    finally:
        os.close(handle)


def take_lock(handle: int, wait: bool) -> bool:
    """Whether this process gets the lock of an open file or folder, until that is closed."""
    try:
        return lock_descriptor(handle, blocking=wait)
    except OSError:  # not every file system has locks
        return True


def is_abandoned(handle: int) -> bool:
    """Whether the writer of an open file or folder is dead; if so, this process locks it.

    On a file system without locks nobody knows, and the file stays.
    """
    try:
        return lock_descriptor(handle, blocking=False)
    except OSError:
        return False


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Create `folder` and refuse other writers of it in the block, for hours of work.

    Others may read it. If it stays empty, it is removed.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{folder} is being written by another process; wait for it, or name another folder"
        ) from None
    try:
        yield
    finally:
        # Before the release: filelock refuses a lock whose file was removed meanwhile.
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # it is not empty
            folder.rmdir()


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
