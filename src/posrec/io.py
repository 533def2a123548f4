"""Files and folders that are written whole or not at all: they get their name only when they are complete.

Everything is written under a hidden temporary name beside its final one, flushed to the disk, and renamed. A crash
leaves at most the temporary file or folder, which the next write to the same name removes.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


DATASET, RUN = "manifest.json", "config.json"  # the files that mark a folder as one of ours
WEIGHTS = "model.safetensors"
KINDS = {DATASET: ("prepared dataset", "posrec prepare"), RUN: ("run folder", "posrec train")}


def require_folder(folder: Path, marker: str) -> None:
    """Fail unless `folder` is a prepared dataset or a run, as `marker` says."""
    if not (folder / marker).is_file():
        kind, command = KINDS[marker]
        raise InputError(f"{folder} is not a {kind} (it has no {marker}); make one with {command}")


def refuse_existing(folder: Path, overwrite: bool = False, marker: str = DATASET) -> None:
    """Fail before the work rather than after it. Only a folder that contains `marker` may be overwritten."""
    if (folder.exists() or folder.is_symlink()) and not overwrite:
        raise InputError(f"{folder} exists already; name another folder, remove it, or pass --overwrite")
    if folder.exists() and not (folder / marker).exists():
        raise InputError(
            f"{folder} exists and is not a {KINDS[marker][0]}, so it is not overwritten; remove it yourself"
        )
    refuse_unwritable(folder)


def refuse_unwritable(path: Path) -> None:
    """Fail unless `path` can be created where it is asked for."""
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{path} can't be made: {parent} is not a folder that can be written to; name another")


@contextmanager
def whole_folder(folder: Path, overwrite: bool = False, marker: str = DATASET) -> Iterator[Path]:
    """Yield a temporary folder to write files into; rename it to `folder` when the block succeeds."""
    refuse_existing(folder, overwrite, marker)
    folder = folder.absolute()
    with temporary(folder, lambda prefix: tempfile.mkdtemp(prefix=prefix, dir=folder.parent)) as unfinished:
        yield unfinished
        unfinished.chmod(0o755)
        for path in [*unfinished.iterdir(), unfinished]:
            flush(path)
        refuse_existing(folder, overwrite, marker)
        if folder.exists():
            replaced = unfinished.with_name(unfinished.name + "-replaced")
            folder.rename(replaced)
            try:
                unfinished.rename(folder)
            except BaseException:
                replaced.rename(folder)
                raise
            shutil.rmtree(replaced)
        else:
            unfinished.rename(folder)
        flush(folder.parent)


@contextmanager
def whole_file(path: Path, overwrite: bool = False, keep_suffix: bool = False) -> Iterator[Path]:
    """Yield a temporary name to write to; rename it to `path` when the block succeeds.

    The temporary name has no suffix, so that nobody who lists `*.json` finds it. `keep_suffix` is for writers that
    choose a format by the suffix.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; name another file, remove it, or pass --overwrite")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    refuse_unwritable(path)
    suffix = "".join(path.suffixes) if keep_suffix else ""

    def create(prefix: str) -> str:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
        os.close(handle)
        return name

    with temporary(path, create) as unfinished:
        yield unfinished
        unfinished.chmod(0o644)
        flush(unfinished)
        unfinished.replace(path)
        flush(path.absolute().parent)


@contextmanager
def temporary(path: Path, create: Callable[[str], str]) -> Iterator[Path]:
    """Yield what `create(prefix)` made beside `path`, locked while the block runs; remove it if the block fails.

    The lock distinguishes a file that is being written from one that a killed process left behind: the operating
    system releases the lock with the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    while True:
        unfinished = Path(create(f".{path.name}.unfinished-"))
        # Until it is locked, another writer may take it for a leftover and remove it. Then begin again.
        try:
            lock = os.open(unfinished, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if unfinished.exists():
            break
        os.close(lock)
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


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files and folders of writers that were killed before they could give them the name `path`.

    Each is removed while it is locked, so that a writer that has just created it notices and starts again.
    """
    escaped = "".join(f"[{c}]" if c in "*?[" else c for c in path.name)
    for leftover in path.parent.glob(f".{escaped}.unfinished-*"):
        with suppress(OSError):  # its writer is alive, or it belongs to someone else
            handle = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(leftover)
            finally:
                os.close(handle)


def remove(path: Path) -> None:
    if path.is_dir():
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


def write_text(path: Path, text: str) -> None:
    """Replace a file by one with this text."""
    with whole_file(path, overwrite=True) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; the folder is damaged, make it again") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not JSON ({error}); it was damaged or written by something else") from None


def replace_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Replace an .npy file."""
    with whole_file(path, overwrite=True) as unfinished:
        write_array(unfinished, array)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an .npy file in place, for folders that `whole_folder` makes; `replace_array` is for all others.

    It writes the same bytes as `np.save`, which hides the reason when the disk is full.
    """
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


def save_tensors(path: Path, tensors: "dict[str, Tensor]", about: dict[str, Any]) -> None:
    """Replace a safetensors file; `about` is kept beside the tensors as JSON."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path, overwrite=True) as unfinished:
        try:
            save_file(plain, unfinished, metadata={"about": json.dumps(about)})
        except SafetensorError as error:
            # The library reports a full disk as "... No space left on device (os error 28)".
            if (found := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def load_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} can't be read ({error}); it is damaged or was not written by posrec") from None
