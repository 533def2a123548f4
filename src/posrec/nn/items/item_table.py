"""The item vectors X, used twice by a model: as inputs for the clicks, and for the scores.

Row i is item i + 1. The number of rows is rounded up to a multiple of eight, because products of
odd sizes are slow on GPUs; the rows after the last item are ignored."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posrec.nn.packing import is_eager_on_cpu

ROW_MULTIPLE = 8


def padded_rows(items: int) -> int:
    """The number of rows of a table of `items` items."""
    return -(-items // ROW_MULTIPLE) * ROW_MULTIPLE


def look_up_and_table(
    table: Tensor, items: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    """The vectors of `items` in a table of items 1..number, zeros for other items, and the table;
    both uses add to one gradient."""
    index = (items - 1).clamp(0, number - 1)
    rows, table = LookUp.apply(table, table, index)  # type: ignore[no-untyped-call]
    return torch.where(is_item(items, number)[..., None], rows, 0), table


def is_item(numbers: Tensor, items: int) -> Tensor:
    """Whether these are numbers of items, 1..items."""
    return (numbers - 1).clamp(0, items - 1) == numbers - 1


class LookUp(torch.autograd.Function):
    """table [n, d] and row numbers -> their rows, and the table. The table is an argument twice,
    once for each use."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, same_table: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        ctx.set_materialize_grads(False)
        ctx.shape = table.shape
        return table[index], table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of both uses, which autograd adds: in this order, sparse and then dense, in
        place if nothing else refers to the dense one. A copy of a large table would take longer
        than the rest."""
        index = ctx.saved_tensors[0].flatten()
        grad_rows, grad_table = gradients
        if grad_rows is None:
            return None, grad_table, None
        grad_rows = grad_rows.flatten(0, -2)
        if grad_table is None:
            grad_table = grad_rows.new_zeros(ctx.shape)
            return grad_table.index_add_(0, index, grad_rows), None, None
        if not is_eager_on_cpu(grad_rows):
            # Compiled code decides what is done in place.
            return None, grad_table.index_add(0, index, grad_rows), None
        sparse = torch.sparse_coo_tensor(
            index[None], grad_rows, ctx.shape, check_invariants=False
        )
        return sparse, grad_table, None


def random_table(rows: int, d: int) -> nn.Parameter:
    bound = 1 / math.sqrt(d)
    return nn.Parameter(torch.empty(rows, d).uniform_(-bound, bound))


class ItemTable(nn.Module):
    """Vectors of items 1..items. Any other number is an unknown item, whose vector is zeros."""

    def __init__(self, items: int, d: int) -> None:
        super().__init__()
        self.items = items
        self.weight = random_table(padded_rows(items), d)

    def look_up(self, items: Tensor) -> Tensor:
        """[...] item numbers -> [..., d]."""
        return self.look_up_and_table(items)[0]

    def look_up_and_table(self, items: Tensor) -> tuple[Tensor, Tensor]:
        return look_up_and_table(self.weight, items, self.items)

    def vectors(self) -> Tensor:
        """[items, d]: row i is item i + 1."""
        return self.weight[: self.items]
