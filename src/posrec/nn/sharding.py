"""Item tables whose rows are spread over the processes that train a model together.

Process r of N holds the rows start_r..end_r-1 of every item table. Look-ups ask the owners of the rows for them, and
the gradients take the same way back. So a table, its gradient and the optimiser's state take 1/N of the memory in each
process. The initial weights are those of a single process with the same seed: all rows are drawn, some at a time, and
those of other processes are dropped.

A look-up sends each row once, so how much is sent depends on the clicks. Shapes of a captured GPU step must not: there
every process looks up what it holds of all that is asked for, and the results are added up (`Summed`). That sends as
many times the bytes as there are processes.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from posrec import kernels
from posrec.nn.collectives import World
from posrec.nn.table_rows import MULTIPLE, TableRows, tables_of, with_look_up

if torch.cuda.is_available():
    from posrec.kernels.smoothing import smooth as fused_smooth

DRAWN_AT_ONCE = 8192  # rows


class ShardedRows(TableRows):
    """The rows of a table of items 1..items that process `world.rank` holds."""

    world: World

    def __init__(self, items: int, world: World, draws: "DrawnByRows | None" = None) -> None:
        super().__init__(items)
        blocks = self.total // MULTIPLE
        if blocks < world.size:
            raise ValueError(f"{items} items are too few for {world.size} processes; start at most {blocks}")
        self.world, self.draws = world, draws
        self.batch_size: int | None = None  # samples after these only make the processes' parts of a batch equal
        self.has_fixed_shapes = False  # whether look-ups must not wait for a value, and have the same size everywhere
        self.starts = [MULTIPLE * (rank * blocks // world.size) for rank in range(world.size + 1)]
        self.start, self.end = self.starts[world.rank : world.rank + 2]

    def local(self, rows: Tensor) -> Tensor:
        return torch.where((rows >= self.start) & (rows < self.end), rows - self.start, len(self))

    def owners(self, rows: Tensor) -> Tensor:
        """The rank of the process that holds each row."""
        return torch.bucketize(rows, torch.tensor(self.starts[1:-1], device=rows.device), right=True)

    def new_table(self, d: int) -> nn.Parameter:
        table, bound = torch.empty(len(self), d), 1 / math.sqrt(d)
        self.draw(table, lambda block: block.uniform_(-bound, bound))
        parameter = nn.Parameter(table)
        if self.draws is not None:
            self.draws.shards[id(parameter)] = (parameter, self)
        return parameter

    def draw(self, table: Tensor, fill: Callable[[Tensor], Any]) -> None:
        """Fill `table [len(self), d]` with the rows that `fill` would draw for this process's part of the whole."""
        for first in range(0, self.total, DRAWN_AT_ONCE):
            block = torch.empty(min(DRAWN_AT_ONCE, self.total - first), table.shape[1])
            fill(block)
            low, high = max(first, self.start), min(first + len(block), self.end)
            if low < high:
                table[low - self.start : high - self.start] = block[low - first : high - first]

    def at(self, table: Tensor, rows: Tensor) -> Tensor:
        kind = Summed if self.has_fixed_shapes else Exchanged
        found: Tensor = kind.apply(table.flatten(1), self, rows.flatten())[0]  # type: ignore[no-untyped-call]
        return found.view(*rows.shape, *table.shape[1:])

    def look_up_and_table(self, table: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        numbers = items.flatten()
        if self.has_fixed_shapes:
            found, table = Summed.apply(table, self, numbers - 1)  # type: ignore[no-untyped-call]
            return found.view(*items.shape, table.shape[1]), table
        # Padding and unknown items are not asked for: all of them would be asked of one process.
        known = ((numbers >= 1) & (numbers <= self.items)).nonzero()[:, 0]
        found, table = Exchanged.apply(table, self, numbers[known] - 1)  # type: ignore[no-untyped-call]
        vectors = found.new_zeros(len(numbers), table.shape[1]).index_copy(0, known, found)
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

    def same_for_all(self, drawn: Tensor) -> Tensor:
        return self.world.copied_from(0, drawn.contiguous())

    def of_all(self, targets: Tensor) -> Tensor:
        return self.world.gathered(targets)[: self.batch_size]

    def smooth(self, table: Tensor, weight: float, offsets: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        """E + w A E of this process's rows, for A as `by_source` lists it. The parts of E come one after the other, so
        that no process holds more than two of them."""
        result, rows, world = table, len(self), self.world
        for source in range(world.size):
            size = self.starts[source + 1] - self.starts[source]
            part = world.copied_from(source, table if source == world.rank else table.new_empty(size, table.shape[1]))
            result = add_smoothed(
                result, part, weight, offsets[source * rows : (source + 1) * rows + 1], columns, values
            )
        return result


def add_smoothed(
    result: Tensor, part: Tensor, weight: float, offsets: Tensor, columns: Tensor, values: Tensor
) -> Tensor:
    """`result` + w A E for a part of E, where row i of A has the entries offsets[i] .. offsets[i + 1] - 1."""
    if kernels.serve(part):
        fused: Tensor = fused_smooth(part, weight, offsets, columns, values, result)
        return fused
    begin, end = int(offsets[0]), int(offsets[-1])
    near = functional.embedding_bag(
        columns[begin:end], part, offsets - begin, mode="sum", per_sample_weights=values[begin:end].to(part.dtype),
        include_last_offset=True,
    )  # fmt: skip
    return torch.add(result, near, alpha=weight)


class Summed(torch.autograd.Function):
    """The rows `rows [T]` of the whole table, [T, d], zeros for those that it does not have; and the part of the table
    that this process holds."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, shard: ShardedRows, rows: Tensor) -> tuple[Tensor, Tensor]:
        asked = shard.world.gathered(rows)
        held = (asked >= shard.start) & (asked < min(shard.end, shard.items))
        local = (asked - shard.start).clamp(0, len(table) - 1)
        ctx.save_for_backward(held, local)
        ctx.set_materialize_grads(False)
        ctx.world, ctx.shape = shard.world, table.shape
        found = torch.where(held[:, None], table[local], 0)
        return shard.world.sums_of_parts(found), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        held, local = ctx.saved_tensors
        of_rows, of_table = gradients
        if of_rows is None:
            return of_table, None, None
        of_all = torch.where(held[:, None], ctx.world.gathered(of_rows), 0)
        return with_look_up(of_table, ctx.shape, local, of_all), None, None


class Exchanged(torch.autograd.Function):
    """The same for rows that the table has, each asked of the process that holds it."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, shard: ShardedRows, rows: Tensor) -> tuple[Tensor, Tensor]:
        world, owners = shard.world, shard.owners(rows)
        order = owners.sort(stable=True).indices
        asked = torch.bincount(owners, minlength=world.size)
        ones = [1] * world.size
        sent, received = torch.stack([asked, world.exchanged(asked, ones, ones)]).tolist()
        wanted = world.exchanged(rows[order], sent, received) - shard.start
        found = torch.empty(len(rows), table.shape[1], dtype=table.dtype, device=table.device)
        found[order] = world.exchanged(table[wanted], received, sent)
        ctx.save_for_backward(order, wanted)
        ctx.set_materialize_grads(False)
        ctx.world, ctx.sent, ctx.received, ctx.shape = world, sent, received, table.shape
        return found, table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        order, wanted = ctx.saved_tensors
        of_rows, of_table = gradients
        if of_rows is None:
            return of_table, None, None
        of_wanted = ctx.world.exchanged(of_rows[order], ctx.sent, ctx.received)
        return with_look_up(of_table, ctx.shape, wanted, of_wanted), None, None


class DrawnByRows(TorchFunctionMode):
    """While a model is built: where it draws the weights of an item table, draw those of all rows and keep some."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: dict[int, tuple[Tensor, ShardedRows]] = {}  # by id; the tensor is kept, so that the id is

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DRAWS:
            tensor = args[0] if args else kwargs["tensor"]
            if id(tensor) in self.shards:
                kwargs.pop("tensor", None)
                with torch.no_grad():
                    self.shards[id(tensor)][1].draw(tensor, lambda block: func(block, *args[1:], **kwargs))
                return tensor
        return func(*args, **kwargs)


DRAWS = (nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


@contextmanager
def sharded_over(world: World) -> Iterator[None]:
    """In the block, the item tables of new models are spread over the processes of `world`."""
    with DrawnByRows() as draws, tables_of(lambda items: ShardedRows(items, world, draws)):
        yield


def tensors_by_rows(model: nn.Module) -> dict[str, ShardedRows]:
    """The names, in the state of a model, of the tensors of which this process holds only some rows."""
    return {
        f"{prefix}.{name}" if prefix else name: part.rows
        for prefix, part in model.named_modules()
        for name in getattr(part, "by_rows", ())
        if isinstance(part.rows, ShardedRows)
    }


def world_of(model: nn.Module) -> World | None:
    """The processes that hold the rows of a model's item tables; None if this process holds them all."""
    return next((rows.world for rows in tensors_by_rows(model).values()), None)
