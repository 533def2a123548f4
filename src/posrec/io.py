"""Files and folders written whole or not at all: they get their name only when they are complete."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Fail before the work rather than after it. Only a folder with `marker` in it is overwritten."""
    if (folder.exists() or folder.is_symlink()) and not overwrite:
        raise InputError(f"{folder} exists already; name another folder, remove it, or pass --overwrite")
    if folder.exists() and not (folder / marker).exists():
        raise InputError(
            f"{folder} exists and is not a {KINDS[marker][0]}, so it is not overwritten; remove it yourself"
        )
    refuse_unwritable(folder)


def refuse_unwritable(folder: Path) -> None:
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{folder} can't be made: {parent} is not a folder that can be written to; name another")


@contextmanager
def whole_folder(folder: Path, overwrite: bool = False, marker: str = DATASET) -> Iterator[Path]:
    """Yield a hidden folder beside `folder` to write into; give it its name when the block ends well.

    A crash, a full disk or kill -9 leaves at most the hidden folder, which the next write to the same name removes.
    """
    refuse_existing(folder, overwrite, marker)
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".{glob_safe(folder.name)}.unfinished-*"):
        if not being_written(stale):
            shutil.rmtree(stale, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.unfinished-", dir=folder.parent))
    lock = os.open(unfinished, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
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
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)
        raise
    finally:
        os.close(lock)


def being_written(folder: Path) -> bool:
    """Whether a living process is writing into it; the lock of a killed one went with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def whole_file(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a hidden name beside `path` to write to; the file gets its own name when the block ends well."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; name another file, remove it, or pass --overwrite")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    refuse_unwritable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays: writers choose a format by it.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.unfinished-", suffix="".join(path.suffixes), dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.chmod(0o644)
        flush(unfinished)
        unfinished.replace(path)
        flush(path.absolute().parent)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, name):
            error.filename = str(path)
        raise


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """What `np.save` writes; but that says nothing of why when the disk is full."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


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


def glob_safe(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def flush(path: Path) -> None:
    """Have the disk hold what was written before its name says so."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_tensors(path: Path, tensors: "dict[str, Tensor]", about: dict[str, Any]) -> None:
    """Replace a safetensors file; `about` is kept beside the tensors as JSON."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path, overwrite=True) as unfinished:
        save_file(plain, unfinished, metadata={"about": json.dumps(about)})


def load_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} can't be read ({error}); it is damaged or was not written by posrec") from None
