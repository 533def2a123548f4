"""Weights and checkpoints of several processes, in the same safetensors files as those of one, by the first process.

The rows of an item table are passed around, those of one process at a time, so each process needs the memory of one
more part. Only the first process needs the run folder. A run can be resumed by any number of processes.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from posrec.errors import InputError
from posrec.io.files import in_file_order, write_tensors
from posrec.training.distributed.rows import ShardedRows
from posrec.training.distributed.world import World

Shards = Mapping[str, ShardedRows]  # by the names of the tensors of which a process holds some rows


def save_together(
    path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World, about: dict[str, Any]
) -> None:
    """Write one file of the tensors of all processes; of those that are not in `shards`, the first process's."""
    order = in_file_order(tensors)
    kinds = {name: (tensors[name].dtype, shape_of(shards, name, tensors[name])) for name in order}

    def blocks() -> Iterator[Tensor]:
        for name in order:
            if name in shards:
                yield from (part for part, _ in shards[name].sources(tensors[name].detach()))
            else:
                yield tensors[name]

    if world.is_first:
        write_tensors(path, kinds, blocks(), about)
    else:
        deque(blocks(), maxlen=0)  # take part in passing the rows around


@torch.no_grad()
def load_together(path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World) -> None:
    """Read into the tensors of all processes, in place."""
    file = opened(path)[0] if world.is_first else None
    names = set(file.keys()) if file is not None else set()
    for name in in_file_order(tensors):
        value, shape = tensors[name], list(shape_of(shards, name, tensors[name]))
        if file is not None and (name not in names or file.get_slice(name).get_shape() != shape):
            raise InputError(f"{path} has no {name} of the shape {shape}; it is damaged or of another model")
        if name not in shards:
            world.spread(value if file is None else value.copy_(file.get_tensor(name)))
            continue
        for rank, (start, end) in enumerate(pairwise(shards[name].starts)):
            part = value.new_empty(end - start, *shape[1:]) if file is None else file.get_slice(name)[start:end]
            part = world.spread(part.to(value))
            if rank == world.rank:
                value.copy_(part)


def names_and_about(path: Path, world: World, device: torch.device) -> tuple[list[str], dict[str, Any]]:
    """The names of the tensors in the first process's file, and what is kept beside them; for all processes."""
    content = None
    if world.is_first:
        file, about = opened(path)
        content = sorted(file.keys()), about
    names, about = world.of_process(content, device)
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
