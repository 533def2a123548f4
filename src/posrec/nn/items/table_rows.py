"""Which rows of a table of item vectors this process holds, and how it reads the others.

Row i is item i + 1. The number of rows is rounded up to a multiple of eight, because products of odd sizes are slow on
GPUs; code that reads the whole table ignores the rows after the last item. A process holds all rows, `TableRows`,
unless several train together (`training/distributed`).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

MULTIPLE = 8


class TableRows:
    """All rows of a table of items 1..items.

    Attributes:
        items: the number of items.
        total: the number of rows of the whole table.
        start, end: this process holds the rows start..end-1.
    """

    def __init__(self, items: int) -> None:
        self.items = items
        self.total = -(-items // MULTIPLE) * MULTIPLE
        self.start, self.end = 0, self.total

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def held(self) -> int:
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
        gradient, in place, so that no second table of zeros is created and added at every step."""
        known = (items >= 1) & (items <= self.items)
        rows, table = Tied.apply(table, (items - 1).clamp(0, self.items - 1))  # type: ignore[no-untyped-call]
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


class Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        ctx.set_materialize_grads(False)
        ctx.shape = weight.shape
        return weight[index], weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        (index,) = ctx.saved_tensors
        grad_rows, grad_table = gradients
        if grad_rows is None:
            return grad_table, None
        return with_look_up(grad_table, ctx.shape, index.flatten(), grad_rows.flatten(0, -2)), None


def fresh(gradient: Tensor) -> Tensor:
    """Mark a table's gradient that nothing else refers to, so that `add_rows` may change it in place."""
    if not torch.compiler.is_compiling():  # compiled code decides by itself what it computes in place
        gradient.posrec_fresh = True  # type: ignore[attr-defined]
    return gradient


def with_look_up(grad_table: Tensor | None, shape: torch.Size, index: Tensor, rows: Tensor) -> Tensor:
    """The gradient of a table of this shape: that of its use as a whole, if it has one, and that of looked-up rows."""
    return add_rows(fresh(rows.new_zeros(shape)) if grad_table is None else grad_table, index, rows)


def add_rows(gradient: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add rows to those of a table's gradient. A gradient that comes from elsewhere may have other uses, and is copied;
    of a large table this takes longer than the rest of the look-up's gradient, and as much memory as the table."""
    if not torch.compiler.is_compiling() and hasattr(gradient, "posrec_fresh"):
        return gradient.index_add_(0, index, rows)
    return gradient.index_add(0, index, rows)
