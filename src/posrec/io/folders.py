"""Folders that get their name only when they are complete, and the checksums of their files.

checksums.json has the size and the SHA-256 of every file of a run or of a prepared dataset, and is
written last. A folder that is being copied does not match it, and is not loaded. A file that is not
listed is not read.
"""

import ctypes
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError
from posrec.io.files import (
    STATE,
    no_permission,
    parse_array,
    parse_json,
    parse_tensors,
    read_bytes,
    read_json,
    refuse_unwritable,
    write_json,
)
from posrec.io.unfinished import (
    LOCK,
    REPLACED,
    UNFINISHED,
    flush,
    locked,
    remove,
    remove_leftovers,
    temporary,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

CHECKSUMS = "checksums.json"
# The files that mark a folder as one of ours.
DATASET = "manifest.json"
RUN = "config.json"
KINDS = {
    DATASET: ("prepared dataset", "posrec prepare"),
    RUN: ("run folder", "posrec train"),
}
# RENAME_EXCHANGE and AT_FDCWD of Linux
EXCHANGE = 2
HERE = -100


def require_folder(folder: Path, marker: str) -> None:
    try:
        if stat.S_ISREG((folder / marker).stat().st_mode):
            return
    except PermissionError as error:
        raise no_permission(folder / marker, error) from None
    except OSError:
        pass
    kind, command = KINDS[marker]
    (other,) = KINDS.keys() - {marker}
    if (folder / other).is_file():
        reason = f"is a {KINDS[other][0]}"
    elif folder.is_dir():
        reason = f"has no {marker}"
    else:
        reason = "is a file" if folder.exists() else "does not exist"
    raise InputError(
        f"{folder} is not a {kind} (it {reason}); check the path, or make one with {command}"
    )


def refuse_existing(
    folder: Path, overwrite: bool = False, marker: str = DATASET
) -> None:
    """Fail before the work. Only a folder that posrec alone has written may be overwritten."""
    if (folder.exists() or folder.is_symlink()) and not overwrite:
        raise InputError(
            f"{folder} exists already; name another folder, remove it, or pass --overwrite"
        )
    if folder.exists() and (reason := why_not_ours(folder, marker)):
        raise InputError(
            f"{folder} exists and {reason}, so it is not overwritten; remove it yourself"
        )
    refuse_unwritable(folder)


def why_not_ours(folder: Path, marker: str) -> str | None:
    try:
        schema = read_json(folder / marker)["schema"]
        known = {*read_checksums(folder), CHECKSUMS, STATE, LOCK}
    except (InputError, KeyError, TypeError):
        schema = None
    if type(schema) is not int:  # a web project has a manifest.json, too
        return f"is not a {KINDS[marker][0]}"
    for path in folder.iterdir():
        is_known = path.name in known or UNFINISHED.fullmatch(path.name)
        if path.is_dir() or not is_known:
            return f"holds {path.name}, which posrec did not write there"
    return None


@contextmanager
def whole_folder(
    folder: Path, overwrite: bool = False, marker: str = DATASET
) -> Iterator[Path]:
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
        # Of two writers without `overwrite`, only one gets the name.
        with locked(folder.parent):
            refuse_existing(folder, overwrite, marker)
            if folder.exists():
                replace_folder(folder, unfinished)
            else:
                unfinished.rename(folder)
            flush(folder.parent)


def replace_folder(folder: Path, new: Path) -> None:
    if exchange(folder, new):
        remove(new)
        return
    replaced = new.with_name(new.name + REPLACED)
    # If the process is killed after this line, the next writer restores the name.
    folder.rename(replaced)
    try:
        new.rename(folder)
    except BaseException:
        replaced.rename(folder)
        raise
    remove(replaced)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; return False if the system can't."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or an old C library
        return False
    names = (os.fsencode(first), os.fsencode(second))
    return bool(renameat2(HERE, names[0], HERE, names[1], EXCHANGE) == 0)


@dataclass(frozen=True)
class Checksum:
    size: int
    sha256: str


def read_checksums(folder: Path) -> dict[str, Checksum]:
    path = folder / CHECKSUMS
    if not path.exists():
        raise InputError(
            f"{folder} has no {CHECKSUMS}: it was copied in part; copy or make it again"
        )
    content = read_json(path)
    try:
        checksums = {
            name: Checksum(int(entry["size"]), str(entry["sha256"]))
            for name, entry in content["files"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{path} is not a list of checksums; it is damaged, make the folder again"
        ) from None
    if any(Path(name).name != name for name in checksums):
        raise InputError(
            f"{path} names files outside {folder}; it is damaged, make the folder again"
        )
    return checksums


@contextmanager
def changing(folder: Path, *names: str) -> Iterator[None]:
    """Replace or add the files `names` of a finished folder in the block, which locks it.

    They are not listed while they change: if the process is killed, the folder can still be
    loaded, without them.
    """
    if not (folder / CHECKSUMS).exists():
        yield  # a copy that `Recommender.save` writes, whose folder is locked already
        return
    with locked(folder):
        others = read_checksums(folder)
        for name in names:
            others.pop(name, None)
        write_checksums(folder, (), others)
        yield
        write_checksums(folder, names, others)


def write_checksums(
    folder: Path, names: Iterable[str], others: Mapping[str, Checksum] | None = None
) -> None:
    """Write checksums.json: of the files `names` that exist, and `others` that are known."""
    checksums = dict(others or {})
    for path in (folder / name for name in names):
        if path.is_file():
            flush(path)  # log.jsonl was only appended to
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            checksums[path.name] = Checksum(path.stat().st_size, sha256)
    files = {name: asdict(checksum) for name, checksum in sorted(checksums.items())}
    write_json(folder / CHECKSUMS, {"files": files})


class FolderReader:
    """Reads files of a run or dataset whole, and compares them with checksums.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checksums = read_checksums(folder)
        self.sha256: dict[str, str] = {}  # of every file that was read, by name

    def has(self, name: str) -> bool:
        return name in self.checksums

    def read(self, name: str) -> bytes:
        path = self.folder / name
        if name not in self.checksums:
            raise InputError(
                f"{path} is not listed in {CHECKSUMS}; the folder is damaged, make it again"
            )
        recorded = self.checksums[name]
        # One byte more shows that a file is larger.
        content = read_bytes(path, max(recorded.size, 0) + 1)
        self.sha256[name] = hashlib.sha256(content).hexdigest()
        if recorded.sha256 != self.sha256[name]:
            raise InputError(
                f"{path} does not match {CHECKSUMS}: the folder is being written, was copied in "
                "part, or was changed; copy or make it again"
            )
        return content

    def check_rest(self) -> None:
        """Compare the files that were not read: any wrong file spoils a folder."""
        for name in self.checksums.keys() - self.sha256.keys():
            self.read(name)

    def json(self, name: str) -> Any:
        return parse_json(self.read(name), self.folder / name)

    def array(self, name: str) -> "npt.NDArray[Any]":
        return parse_array(self.read(name), self.folder / name)

    def tensors(self, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
        return parse_tensors(self.read(name), self.folder / name)
