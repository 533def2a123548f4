"""Weights and checkpoints of several processes, in the same safetensors files as those of one, by the first process.

The rows of an item table come to the first process, or leave it, those of one process at a time, so it never holds a
whole table. Only the first process needs the run folder. A run can be resumed by any number of processes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from posrec.errors import InputError
from posrec.io.files import whole_file
from posrec.training.distributed.rows import ShardedRows
from posrec.training.distributed.world import World

ALIGNED = 8  # bytes; the content of a file begins at a multiple of this, as the format asks for
FORMAT_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

Shards = Mapping[str, ShardedRows]  # by the names of the tensors of which a process holds some rows


def save_together(
    path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World, about: dict[str, Any]
) -> None:
    """Write one file of the tensors of all processes; of those that are not in `shards`, the first process's."""
    order = in_file_order(tensors)
    if not world.is_first:
        for name in (name for name in order if name in shards):
            world.send(tensors[name].detach(), to=0)
        return
    kinds = {name: (tensors[name].dtype, shape_of(shards, name, tensors[name])) for name in order}
    with tensor_writer(path, kinds, about) as write:
        for name in order:
            value = tensors[name].detach()
            write(value)
            for rank in range(1, world.size) if name in shards else ():
                size = shards[name].starts[rank + 1] - shards[name].starts[rank]
                write(world.receive(value.new_empty(size, *value.shape[1:]), rank))


@torch.no_grad()
def load_together(path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World) -> None:
    """Read into the tensors of all processes, in place."""
    order = in_file_order(tensors)
    if not world.is_first:
        for name in order:
            world.receive(tensors[name], 0) if name in shards else world.spread(tensors[name])
        return
    file, _ = opened(path)
    names = set(file.keys())
    for name in order:
        value, shape = tensors[name], list(shape_of(shards, name, tensors[name]))
        if name not in names or file.get_slice(name).get_shape() != shape:
            raise InputError(f"{path} has no {name} of the shape {shape}; it is damaged or of another model")
        if name not in shards:
            world.spread(value.copy_(file.get_tensor(name)))
            continue
        starts, rows = shards[name].starts, file.get_slice(name)
        value.copy_(rows[: starts[1]])
        for rank in range(1, world.size):
            world.send(rows[starts[rank] : starts[rank + 1]].to(value.device, value.dtype), to=rank)


def names_and_about(path: Path, world: World, device: torch.device) -> tuple[list[str], dict[str, Any]]:
    """The names of the tensors in the first process's file, and what is kept beside them; for all processes."""
    content = ""
    if world.is_first:
        file, about = opened(path)
        content = json.dumps([sorted(file.keys()), about])
    names, about = json.loads(world.text(content, device))
    return names, about


def opened(path: Path) -> tuple[Any, dict[str, Any]]:
    """A safetensors file, and what is kept beside its tensors."""
    try:
        file = safe_open(path, "pt").__enter__()  # type: ignore[no-untyped-call]
        return file, json.loads(file.metadata()["about"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} can't be read ({error}); it is damaged or was not written by posrec") from None


def shape_of(shards: Shards, name: str, value: Tensor) -> tuple[int, ...]:
    """The shape of the whole tensor."""
    return (shards[name].total, *value.shape[1:]) if name in shards else tuple(value.shape)


def in_file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors in the order of their content in a file: the largest numbers first, so that all are aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


@contextmanager
def tensor_writer(
    path: Path, kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], about: dict[str, Any]
) -> Iterator[Callable[[Tensor], None]]:
    """Replace a safetensors file by one with tensors of these dtypes and shapes, in this order.

    Yields a function that writes the next block of rows. The file gets its name when the `with` block succeeds.
    """
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about)}}
    end = 0
    for name, (dtype, shape) in kinds.items():
        if dtype not in FORMAT_NAMES:
            raise InputError(f"{name} is a tensor of {dtype}, which safetensors files do not hold")
        begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": FORMAT_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % ALIGNED)
    with whole_file(path, overwrite=True) as unfinished, unfinished.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)

        def write(block: Tensor) -> None:
            file.write(block.cpu().contiguous().flatten().view(torch.uint8).numpy().data)

        yield write
        if file.tell() != 8 + len(content) + end:
            raise ValueError(f"{path}: {file.tell()} bytes were written, and its header announces {end} after itself")
