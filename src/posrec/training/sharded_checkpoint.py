"""Weights and checkpoints of several processes, in the same files as those of one, by the first process.

The rows of an item table come to the first process, or leave it, a block at a time, so it never holds more than its own
rows and one block. Only the first process needs the run folder. A run can be resumed by any number of processes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posrec.errors import InputError
from posrec.io import CONTINUATION, STATE, WEIGHTS, Continuation
from posrec.io.tensor_stream import TensorReader, in_file_order, tensor_writer
from posrec.models.base import SessionModel
from posrec.nn.collectives import World
from posrec.nn.sharding import ShardedRows, tensors_by_rows

BLOCK_BYTES = 1 << 26
MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam: shaped like the weights

Shards = Mapping[str, ShardedRows]  # by the names of the tensors of which a process holds some rows


def save_sharded_weights(run: Path, model: SessionModel, world: World) -> None:
    save(run / WEIGHTS, model.saved_weights(), tensors_by_rows(model), world, {})


def save_sharded_continuation(run: Path, model: SessionModel, kept: Continuation, world: World) -> None:
    save(run / CONTINUATION, kept.moments, tensors_by_rows(model), world, kept.about())


def load_sharded_weights(run: Path, model: SessionModel, world: World) -> None:
    """Read what `save_sharded_weights` wrote into a model that was just built."""
    load(run / WEIGHTS, model.state_dict(), tensors_by_rows(model), world)


def save_sharded_state(
    run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], world: World
) -> None:
    by_rows = tensors_by_rows(model)
    tensors, shards = {f"model.{name}": value for name, value in model.state_dict().items()}, model_shards(by_rows)
    device = next(model.parameters()).device
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    states = world.gathered(torch.get_rng_state().to(device)[None])
    tensors |= {random_name(rank): states[rank] for rank in range(world.size)}
    save(run / STATE, tensors, shards, world, progress)


def load_sharded_state(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> dict[str, Any]:
    device, by_rows = next(model.parameters()).device, tensors_by_rows(model)
    if world.is_first:
        with TensorReader(run / STATE) as reader:
            known = json.dumps([sorted(reader.names), reader.about])
    names, progress = json.loads(world.text(known if world.is_first else "", device))
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key in ("step", *MOMENTS):
            if (saved := f"optimizer.{key}.{name}") in names:
                # Fused Adam keeps its step count on the device of the weights.
                value = torch.zeros((), device=device) if key == "step" else torch.empty_like(parameter)
                optimizer.state[parameter][key] = tensors[saved] = value.detach()
    size = len(torch.get_rng_state())
    ranks = [rank for rank in range(world.size) if random_name(rank) in names]
    tensors |= {random_name(rank): torch.empty(size, dtype=torch.uint8, device=device) for rank in ranks}
    load(run / STATE, tensors, model_shards(by_rows), world)
    if world.rank in ranks:
        torch.set_rng_state(tensors[random_name(world.rank)].cpu())
    return dict(progress)


def model_shards(by_rows: Shards) -> dict[str, ShardedRows]:
    """The names in a checkpoint of the tensors of which a process holds some rows."""
    prefixes = ("model", *(f"optimizer.{key}" for key in MOMENTS))
    return {f"{prefix}.{name}": rows for name, rows in by_rows.items() for prefix in prefixes}


def random_name(rank: int) -> str:
    """The state of a process's random generator. That of the first has the name it has in a single process."""
    return "random" if rank == 0 else f"random.{rank}"


def save(path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World, about: dict[str, Any]) -> None:
    """Write one file of the tensors of all processes; of those that are not in `shards`, the first process's."""
    kinds = {
        name: (value.dtype, (shards[name].total, *value.shape[1:]) if name in shards else tuple(value.shape))
        for name, value in tensors.items()
    }
    order = in_file_order({name: value.dtype for name, value in tensors.items()})
    if not world.is_first:
        for name in order:
            for low, high in blocks(shards, name, tensors[name], world.rank):
                world.send(tensors[name].detach()[low:high], to=0)
        return
    with tensor_writer(path, kinds, about) as write:
        for name in order:
            value = tensors[name].detach()
            write(value)
            for rank in range(1, world.size):
                for low, high in blocks(shards, name, value, rank):
                    write(world.receive(value.new_empty(high - low, *value.shape[1:]), rank))


@torch.no_grad()
def load(path: Path, tensors: Mapping[str, Tensor], shards: Shards, world: World) -> None:
    """Read into the tensors of all processes, in place."""
    order = in_file_order({name: value.dtype for name, value in tensors.items()})
    if not world.is_first:
        for name in order:
            if name not in shards:
                world.spread(tensors[name])
            for low, high in blocks(shards, name, tensors[name], world.rank):
                tensors[name][low:high] = world.receive(torch.empty_like(tensors[name][low:high]), 0)
        return
    with TensorReader(path) as reader:
        for name in order:
            value = tensors[name]
            check(reader, name, [shards[name].total, *value.shape[1:]] if name in shards else list(value.shape))
            if name not in shards:
                world.spread(value.copy_(reader.whole(name)))
                continue
            starts = shards[name].starts
            value.copy_(reader.rows(name, *starts[:2]))
            for rank in range(1, world.size):
                for low, high in blocks(shards, name, value, rank):
                    part = reader.rows(name, starts[rank] + low, starts[rank] + high)
                    world.send(part.to(value.device, value.dtype), to=rank)


def check(reader: TensorReader, name: str, shape: list[int]) -> None:
    if name not in reader.names or reader.shape(name) != shape:
        raise InputError(f"{reader.path} has no {name} of the shape {shape}; it is damaged or of another model")


def blocks(shards: Shards, name: str, value: Tensor, rank: int) -> Iterator[tuple[int, int]]:
    """The rows that a process sends or receives at a time, low..high-1 of its own; none if it has no part of its
    own."""
    if name not in shards:
        return
    starts = shards[name].starts
    size, row = starts[rank + 1] - starts[rank], value[0].numel() * value.dtype.itemsize
    at_once = max(1, BLOCK_BYTES // max(1, row))
    for low in range(0, size, at_once):
        yield low, min(low + at_once, size)
