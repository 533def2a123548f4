"""safetensors files that are written and read a block of rows at a time, for tensors that no process holds whole."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError
from posrec.io.files import whole_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNED = 8  # bytes; the content begins at a multiple of this, as the format asks for


def in_file_order(dtypes: "Mapping[str, torch.dtype]") -> list[str]:
    """Names of tensors in the order of their content in a file: the largest numbers first, so that all are aligned."""
    return sorted(dtypes, key=lambda name: (-dtypes[name].itemsize, name))


@contextmanager
def tensor_writer(
    path: Path, kinds: "Mapping[str, tuple[torch.dtype, tuple[int, ...]]]", about: dict[str, Any]
) -> "Iterator[Callable[[Tensor], None]]":
    """Replace a safetensors file by one with tensors of these dtypes and shapes; `about` is kept beside them as JSON.

    Yields a function that writes the next block of rows. Blocks come in the order of `in_file_order`. The file gets its
    name when the block of the `with` statement succeeds.
    """
    import torch

    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
        torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
    }  # fmt: skip
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about)}}
    end = 0
    for name in in_file_order({name: dtype for name, (dtype, _) in kinds.items()}):
        dtype, shape = kinds[name]
        begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % ALIGNED)
    with whole_file(path, overwrite=True) as unfinished, unfinished.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)

        def write(block: "Tensor") -> None:
            file.write(block.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

        yield write
        if file.tell() != 8 + len(content) + end:
            raise ValueError(f"{path}: {file.tell()} bytes were written, and its header announces {end} after itself")


class TensorReader:
    """Reads blocks of rows from a safetensors file inside `with`.

    Attributes:
        names: the names of the tensors.
        about: what is kept beside them.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            self.file = safe_open(path, "pt").__enter__()  # type: ignore[no-untyped-call]
            self.names = set(self.file.keys())
            self.about: dict[str, Any] = json.loads(self.file.metadata()["about"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} can't be read ({error}); it is damaged or was not written by posrec") from None

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.__exit__(*error)

    def shape(self, name: str) -> list[int]:
        found: list[int] = self.file.get_slice(name).get_shape()
        return found

    def rows(self, name: str, start: int, end: int) -> "Tensor":
        """The rows start..end-1 of a tensor."""
        found: Tensor = self.file.get_slice(name)[start:end]
        return found

    def whole(self, name: str) -> "Tensor":
        found: Tensor = self.file.get_tensor(name)
        return found
