"""Folders that get their name only when they are complete, and the files that mark a folder as one of ours."""

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posrec.errors import InputError
from posrec.io.files import no_permission, refuse_unwritable
from posrec.io.unfinished import REPLACED, flush, locked, remove, remove_leftovers, temporary

DATASET, RUN = "manifest.json", "config.json"  # the files that mark a folder as one of ours
KINDS = {DATASET: ("prepared dataset", "posrec prepare"), RUN: ("run folder", "posrec train")}
EXCHANGE, HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


def require_folder(folder: Path, marker: str) -> None:
    """Fail unless `folder` is a prepared dataset or a run, as `marker` says."""
    try:
        if stat.S_ISREG((folder / marker).stat().st_mode):
            return
    except PermissionError as error:
        raise no_permission(folder / marker, error) from None
    except OSError:
        pass
    kind, command = KINDS[marker]
    if not folder.exists():
        raise InputError(f"{folder} is not a {kind}: it does not exist; check the path, or make one with {command}")
    if folder.is_file():
        raise InputError(f"{folder} is a file, not a {kind}; make one with {command}")
    (other,) = KINDS.keys() - {marker}
    if (folder / other).is_file():
        raise InputError(f"{folder} is a {KINDS[other][0]}, not a {kind}; name a folder that {command} has written")
    raise InputError(f"{folder} is not a {kind} (it has no {marker}); make one with {command}")


def refuse_existing(folder: Path, overwrite: bool = False, marker: str = DATASET) -> None:
    """Fail before the work rather than after it. Only a folder that contains `marker` may be overwritten."""
    if (folder.exists() or folder.is_symlink()) and not overwrite:
        raise InputError(f"{folder} exists already; name another folder, remove it, or pass --overwrite")
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a link to nothing; remove it, or name another folder")
    if folder.exists() and not (folder / marker).exists():
        raise InputError(
            f"{folder} exists and is not a {KINDS[marker][0]}, so it is not overwritten; remove it yourself"
        )
    refuse_unwritable(folder)


@contextmanager
def whole_folder(folder: Path, overwrite: bool = False, marker: str = DATASET) -> Iterator[Path]:
    """Yield a temporary folder to write files into; rename it to `folder` when the block succeeds.

    If `folder` is a symbolic link, the folder that it leads to is replaced and the link stays.
    """
    remove_leftovers(folder.absolute().parent)  # this may give a folder its name back
    refuse_existing(folder, overwrite, marker)
    folder = folder.resolve()
    with temporary(folder, Path.mkdir) as unfinished:
        yield unfinished
        for path in [*unfinished.iterdir(), unfinished]:
            flush(path)
        with locked(folder.parent):  # of two writers without `overwrite`, only one gets the name
            refuse_existing(folder, overwrite, marker)
            if folder.exists():
                replace_folder(folder, unfinished)
            else:
                unfinished.rename(folder)
            flush(folder.parent)


def replace_folder(folder: Path, new: Path) -> None:
    """Give the name of `folder` to `new`, and remove what had it before."""
    if exchange(folder, new):
        remove(new)
        return
    replaced = new.with_name(new.name + REPLACED)
    folder.rename(replaced)  # if the process is killed here, the next writer restores the name
    try:
        new.rename(folder)
    except BaseException:
        replaced.rename(folder)
        raise
    remove(replaced)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in a single step; False where the system or the file system has no such step."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or an old C library
        return False
    return bool(renameat2(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0)
