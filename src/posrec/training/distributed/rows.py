"""Item tables whose rows are spread over the processes that train a model together.

Process r of N holds the rows start_r..end_r-1 of every item table. Look-ups ask the owners of the rows for them, and
the gradients take the same way back, so a table, its gradient and the optimiser's state take 1/N of the memory in each
process. Every process builds the whole model from the same seed and keeps its rows, so the initial weights are those of
a single process.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posrec.errors import InputError
from posrec.models.base import Model
from posrec.nn.items.item_table import ROW_MULTIPLE, TableRows, look_up_gradients, rows_of
from posrec.training.distributed.world import World


class ShardedRows(TableRows):
    """The rows of a table of items 1..items that process `world.rank` holds."""

    def __init__(self, items: int, world: World) -> None:
        super().__init__(items)
        blocks = self.total // ROW_MULTIPLE
        if blocks < world.size:
            raise InputError(f"{items} items are too few for {world.size} processes; start at most {blocks}")
        self.world = world
        self.starts = [ROW_MULTIPLE * (rank * blocks // world.size) for rank in range(world.size + 1)]
        self.start, self.end = self.starts[world.rank : world.rank + 2]

    def local(self, rows: Tensor) -> Tensor:
        return torch.where((rows >= self.start) & (rows < self.end), rows - self.start, len(self))

    def owners(self, rows: Tensor) -> Tensor:
        """The rank of the process that holds each row."""
        return torch.bucketize(rows, torch.tensor(self.starts[1:-1], device=rows.device), right=True)

    def at(self, table: Tensor, rows: Tensor) -> Tensor:
        flat = table.flatten(1)
        vectors: Tensor = Exchanged.apply(flat, flat, self, rows.flatten())[0]  # type: ignore[no-untyped-call]
        return vectors.view(*rows.shape, *table.shape[1:])

    def look_up_and_table(self, table: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        numbers = items.flatten()
        # Padding and unknown items are not asked for: all of them would be asked of one process.
        known = ((numbers >= 1) & (numbers <= self.items)).nonzero()[:, 0]
        rows, table = Exchanged.apply(table, table, self, numbers[known] - 1)  # type: ignore[no-untyped-call]
        vectors = rows.new_zeros(len(numbers), table.shape[1]).index_copy(0, known, rows)
        return vectors.view(*items.shape, table.shape[1]), table

    def by_source(self, row: Tensor, column: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """The entries in the rows of this process, in one block of rows for each process that holds their columns,
        which are counted from its first row."""
        here = (row >= self.start) & (row < self.end)
        source = self.owners(column[here])
        in_block = source * len(self) + row[here] - self.start
        order = in_block.sort(stable=True).indices
        local = column[here] - torch.tensor(self.starts, device=column.device)[source]
        return in_block[order], local[order], value[here][order], self.world.size * len(self)

    def sources(self, table: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """The parts of all processes come one after the other, so that no process holds more than two of them."""
        for source in range(self.world.size):
            size = self.starts[source + 1] - self.starts[source]
            part = table.clone() if source == self.world.rank else table.new_empty(size, *table.shape[1:])
            yield self.world.spread(part, source), slice(source * len(self), (source + 1) * len(self) + 1)

    def same_for_all(self, drawn: Tensor) -> Tensor:
        return self.world.spread(drawn.clone())

    def of_all(self, targets: Tensor) -> Tensor:
        return self.world.gathered(targets)

    def summed(self, values: Tensor) -> Tensor:
        return self.world.summed(values)


class Exchanged(torch.autograd.Function):
    """The rows `rows [T]` of the whole table, [T, d], each asked of the process that holds it; and the part of the
    table that this process holds, which is given twice, once for each use."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, same_table: Tensor, shard: ShardedRows, rows: Tensor) -> tuple[Tensor, Tensor]:
        world, owners = shard.world, shard.owners(rows)
        order = owners.sort(stable=True).indices
        asked = torch.bincount(owners, minlength=world.size)
        ones = [1] * world.size
        sent, received = torch.stack([asked, world.exchanged(asked, ones, ones)]).tolist()
        wanted = world.exchanged(rows[order], sent, received) - shard.start
        vectors = torch.empty(len(rows), table.shape[1], dtype=table.dtype, device=table.device)
        vectors[order] = world.exchanged(table[wanted], received, sent)
        ctx.save_for_backward(order, wanted)
        ctx.set_materialize_grads(False)
        ctx.world, ctx.sent, ctx.received, ctx.shape = world, sent, received, table.shape
        return vectors, table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        order, wanted = ctx.saved_tensors
        grad_rows, grad_table = gradients
        if grad_rows is None:
            return None, grad_table, None, None
        grad_wanted = ctx.world.exchanged(grad_rows[order], ctx.sent, ctx.received)
        return *look_up_gradients(grad_wanted, wanted, ctx.shape, grad_table), None, None


def keep_own_rows(model: Model, world: World) -> Model:
    """The model with this process's rows of its item tables, in place."""
    whole = rows_of(model)
    if whole is None:
        raise InputError(
            f"{type(model).__name__} has no posrec.ItemTable to spread over processes; train it without torchrun"
        )
    rows = ShardedRows(whole.items, world)
    for part in model.modules():
        if isinstance(getattr(part, "rows", None), TableRows):
            part.rows = rows  # type: ignore[assignment]
        for name in getattr(part, "by_rows", ()):
            tensor = getattr(part, name)
            own = tensor.detach()[rows.start : rows.end].clone()
            setattr(part, name, nn.Parameter(own) if isinstance(tensor, nn.Parameter) else own)
    return model


def sharded_rows_of(model: nn.Module) -> ShardedRows | None:
    rows = rows_of(model)
    return rows if isinstance(rows, ShardedRows) else None


def world_of(model: nn.Module) -> World:
    """The processes that hold the rows of a model's item tables."""
    rows = sharded_rows_of(model)
    return World() if rows is None else rows.world


def tensors_by_rows(model: nn.Module) -> dict[str, ShardedRows]:
    """The names, in the state of a model, of the tensors of which this process holds only some rows."""
    return {
        f"{prefix}.{name}" if prefix else name: part.rows
        for prefix, part in model.named_modules()
        for name in getattr(part, "by_rows", ())
        if isinstance(part.rows, ShardedRows)
    }
