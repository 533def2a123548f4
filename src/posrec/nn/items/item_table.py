"""The item vectors X, used twice by a model: as inputs for the clicks, and as outputs for the scores.

Row i is item i + 1. The number of rows is rounded up to a multiple of eight, because products of odd sizes are slow on
GPUs; code that reads the whole table ignores the rows after the last item. A process holds all rows, `TableRows`,
unless several train together (`training/distributed`).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from posrec.nn.packing import is_eager_on_cpu

ROW_MULTIPLE = 8


class TableRows:
    """All rows of a table of items 1..items.

    Attributes:
        items: the number of items.
        total: the number of rows of the whole table.
        start, end: this process holds the rows start..end-1.
    """

    def __init__(self, items: int) -> None:
        self.items = items
        self.total = -(-items // ROW_MULTIPLE) * ROW_MULTIPLE
        self.start, self.end = 0, self.total

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def items_here(self) -> int:
        """The number of items among the rows of this process; they come first."""
        return min(self.items, self.end) - self.start

    def local(self, rows: Tensor) -> Tensor:
        """Rows of the whole table -> rows of this process, counted from 0; `len(self)` for those it does not hold."""
        return rows

    def at(self, table: Tensor, rows: Tensor) -> Tensor:
        """table [len(self), ...], rows [...] of the whole table -> [..., ...]."""
        return table[rows]

    def look_up_and_table(self, table: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of `items` in the table, zeros for unknown items, and the table; both uses add to one
        gradient."""
        known = (items >= 1) & (items <= self.items)
        index = (items - 1).clamp(0, self.items - 1)
        rows, table = LookUp.apply(table, table, index)  # type: ignore[no-untyped-call]
        return torch.where(known[..., None], rows, 0), table

    def by_source(self, row: Tensor, column: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """The entries of a matrix [total, total] that this process multiplies a table with, sorted by row; and the
        number of rows that they are counted in."""
        order = row.sort(stable=True).indices
        return row[order], column[order], value[order], self.total

    def sources(self, table: Tensor) -> Iterable[tuple[Tensor, slice]]:
        """The parts of the whole table, and for each the place of its entries among the offsets of `by_source`."""
        return [(table, slice(None))]

    def same_for_all(self, drawn: Tensor) -> Tensor:
        """Random numbers that all processes must share: those of the first process."""
        return drawn

    def of_all(self, targets: Tensor) -> Tensor:
        """The targets of the whole batch, from those of this process's part of it."""
        return targets

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values


class LookUp(torch.autograd.Function):
    """table [n, d] and row numbers -> their rows, and the table. The table is given twice, once for each use."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, same_table: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        ctx.set_materialize_grads(False)
        ctx.shape = table.shape
        return table[index], table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (index,) = ctx.saved_tensors
        grad_rows, grad_table = gradients
        if grad_rows is None:
            return None, grad_table, None
        return *look_up_gradients(grad_rows.flatten(0, -2), index.flatten(), ctx.shape, grad_table), None


def look_up_gradients(
    grad_rows: Tensor, index: Tensor, shape: torch.Size, grad_table: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a table of this shape from its looked-up rows and from its use as a whole; autograd adds both.

    In this order, sparse and then dense, autograd adds them in place where nothing else refers to the dense one; a copy
    of a large table takes longer than the rest of the look-up's gradient, and as much memory as the table.
    """
    if grad_table is None:
        return grad_rows.new_zeros(shape).index_add_(0, index, grad_rows), None
    if not is_eager_on_cpu(grad_rows):
        return None, grad_table.index_add(0, index, grad_rows)  # compiled code decides what it computes in place
    # torch warns unless it is told not to check them.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(index[None], grad_rows, shape), grad_table


class ItemTable(nn.Module):
    """Vectors of items 1..items. Any other number is an unknown item, whose vector is zeros."""

    by_rows = ("weight",)  # tensors with a row for each row that this process holds

    def __init__(self, items: int, d: int) -> None:
        super().__init__()
        self.items = items
        self.rows = TableRows(items)
        bound = 1 / math.sqrt(d)
        self.weight = nn.Parameter(torch.empty(self.rows.total, d).uniform_(-bound, bound))

    def look_up(self, items: Tensor) -> Tensor:
        """[...] item numbers -> [..., d]."""
        return self.look_up_and_table(items)[0]

    def look_up_and_table(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of `items`, and the table."""
        return self.rows.look_up_and_table(self.weight, items)

    def vectors(self) -> Tensor:
        """[items, d]: row i is item i + 1; of the rows that this process holds."""
        return self.weight[: self.rows.items_here]


def rows_of(model: nn.Module) -> TableRows | None:
    """The rows of a model's item tables that this process holds; None for a model without an ItemTable."""
    return next((part.rows for part in model.modules() if isinstance(part, ItemTable)), None)
