"""Text, JSON, arrays and tensors: replaced whole or not at all, and read with clear errors."""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError, RunFailed
from posrec.io.unfinished import flush, temporary

if TYPE_CHECKING:
    from torch import Tensor

# Files of a run: weights, latest checkpoint, and what else a training that starts from it needs.
WEIGHTS = "model.safetensors"
STATE = "state.safetensors"
CONTINUATION = "continuation.safetensors"
ATTRIBUTES = "attributes.safetensors"  # of the items, for items that come later


def refuse_unwritable(path: Path) -> None:
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(
            f"{path} can't be made: {parent} is not a folder that can be written to; name another"
        )


@contextmanager
def whole_file(
    path: Path, overwrite: bool = False, follow: bool = True
) -> Iterator[Path]:
    """Yield a temporary file to write to; rename it to `path` when the block succeeds.

    Nobody who lists `*.json` finds it. If `path` is a symbolic link, the file that it leads to is
    replaced; without `follow`, the link is.
    """

    def refuse_existing() -> None:
        if path.exists() and not overwrite:
            raise InputError(
                f"{path} exists already; name another file, remove it, or pass --overwrite"
            )

    refuse_existing()
    if path.exists() and not path.is_file():  # root could replace even /dev/null
        raise InputError(f"{path} is a folder or a device; name a file")
    refuse_unwritable(path)
    path = path.resolve() if follow and path.is_symlink() else path
    with temporary(path, partial(Path.touch, exist_ok=False)) as unfinished:
        yield unfinished
        refuse_existing()  # another process may have been quicker
        give_name(unfinished, path)


def give_name(unfinished: Path, path: Path) -> None:
    flush(unfinished)
    unfinished.replace(path)
    flush(path.absolute().parent)


def open_regular(path: Path) -> BufferedReader:
    """A file to read. Others may have put a link to /dev/zero there, or a pipe that nobody writes
    to, so it is opened without waiting and must be a regular file."""

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    file = open(path, "rb", opener=open_at_once)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{path} is not a regular file; copy or make it again")
    return file


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A whole file, to the size that it has, or its first `most` bytes."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            return file.read(size if most is None else min(size, most))
    except MemoryError:
        raise InputError(
            f"{path} does not fit in memory; it is damaged, or this machine is too small for it"
        ) from None
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing; the folder is damaged, copy or make it again"
        ) from None
    except PermissionError as error:
        raise no_permission(path, error) from None
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror or error})") from None


def os_error_in(error: Exception) -> OSError | None:
    """The operating system's error that a library written in Rust quotes: "... (os error 28)"."""
    match = re.search(r"os error (\d+)", str(error))
    if match is None:
        return None
    number = int(match[1])
    return OSError(number, os.strerror(number))


def no_permission(path: Path, error: OSError) -> InputError:
    try:
        state = path.stat()
        mode = f"{stat.S_IMODE(state.st_mode):04o}"
        reason = f"it belongs to user {state.st_uid} and its mode is {mode}"
    except OSError:
        reason = "a folder on the way to it is closed to this user"
    return InputError(
        f"{path} can't be read: {error.strerror}; {reason}; "
        f"let user {os.geteuid()} read it (chmod, chown)"
    )


def write_bytes(path: Path, content: bytes) -> None:
    with whole_file(path, overwrite=True) as unfinished:
        unfinished.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, **options: Any) -> str:
    """For every JSON file: JSON has no NaN and no infinity, and other programs refuse them."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        raise RunFailed(
            "a figure is not a finite number, so it can't be written as JSON"
        ) from None


def read_json(path: Path) -> Any:
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    # Also if it is nested too deeply, or has a number of thousands of digits.
    except (RecursionError, ValueError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); it was damaged or written by something else"
        ) from None


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """As `np.save`, which would hide the reason when the disk is full."""
    content = BytesIO()
    np.save(content, array)
    write_bytes(path, content.getvalue())


def parse_array(content: bytes, path: Path) -> npt.NDArray[Any]:
    stream = BytesIO(content)
    try:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    # numpy parses the header as Python: damage there can raise almost anything.
    except Exception as error:
        raise InputError(
            f"{path} can't be read ({error}); the folder is damaged, make it again"
        ) from None
    return array


def save_tensors(
    path: Path, tensors: "Mapping[str, Tensor]", about: dict[str, Any]
) -> None:
    """Replace a safetensors file; `about` is kept beside the tensors as JSON."""
    from safetensors.torch import save

    # The library's save_file would replace the unfinished file, which is locked.
    write_bytes(path, save(separate(tensors), {"about": json.dumps(about)}))


def separate(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The tensors on the CPU, none in the memory of another, as safetensors requires.

    A model may use one weight under two names.
    """
    separated = {}
    used_memory = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        begin = tensor.untyped_storage().data_ptr()
        separated[name] = tensor.clone() if begin in used_memory else tensor
        used_memory.add(begin)
    return separated


def load_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    return parse_tensors(read_bytes(path), path)


def parse_tensors(
    content: bytes, path: Path
) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """The tensors and what is kept about them.

    The content is read, not mapped: a mapped file that is overwritten changes the tensors, and one
    that is cut short ends the process with SIGBUS.
    """
    from safetensors.torch import load

    return parsed(content, path, load)


def parse_arrays(
    content: bytes, path: Path
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """As `parse_tensors`, without torch."""
    from safetensors.numpy import load

    return parsed(content, path, load)


def parsed(
    content: bytes, path: Path, load: Callable[[bytes], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError

    try:
        # In order of name, since the library's order differs from call to call.
        tensors = dict(sorted(load(content).items()))
        header_size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + header_size])
        return tensors, json.loads(header["__metadata__"]["about"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} can't be read ({error}); it is damaged or was not written by posrec"
        ) from None
