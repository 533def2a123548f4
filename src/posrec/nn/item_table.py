"""The item vectors X, used twice by a model: as inputs for the clicks, and as outputs for the scores.

Both uses give the table a gradient. `look_up_and_table` adds the two in place, so that no second table of zeros is
created and added at every step. The number of rows is rounded up to a multiple of eight, because products of odd sizes
are slow on GPUs; code that reads the whole table ignores the rows after the last item.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

MULTIPLE = 8


class ItemTable(nn.Module):
    """Vectors of items 1..items. Any other number is an unknown item, whose vector is zeros."""

    def __init__(self, items: int, d: int) -> None:
        super().__init__()
        self.items = items
        rows, bound = -(-items // MULTIPLE) * MULTIPLE, 1 / math.sqrt(d)
        self.weight = nn.Parameter(torch.empty(rows, d).uniform_(-bound, bound))

    def look_up(self, items: Tensor) -> Tensor:
        """[...] item numbers -> [..., d]."""
        return self.look_up_and_table(items)[0]

    def look_up_and_table(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of `items`, and the whole table."""
        return look_up_and_table(self.weight, items, self.items)

    def vectors(self) -> Tensor:
        """[items, d]: row i is item i + 1."""
        return self.weight[: self.items]


def look_up_and_table(table: Tensor, items: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The vectors of `items` in a table of items 1..number, and the whole table; both uses add to one gradient."""
    known = (items >= 1) & (items <= number)
    rows, table = Tied.apply(table, (items - 1).clamp(0, number - 1))  # type: ignore[no-untyped-call]
    return torch.where(known[..., None], rows, 0), table


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
        of_rows, of_table = gradients
        if of_rows is None:
            return of_table, None
        if of_table is None:
            of_table = of_rows.new_zeros(ctx.shape)
        return of_table.index_add(0, index.flatten(), of_rows.flatten(0, -2)), None
