"""The item vectors X, used twice by a model: as inputs for the clicks, and as outputs for the scores.

Both uses give the table a gradient, and `look_up_and_table` adds the two. A process may hold only some rows of the
table, `nn/items/table_rows.py`.
"""

import math

import torch
from torch import Tensor, nn

from posrec.nn.items.table_rows import TableRows


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
        return self.weight[: self.rows.held]


def rows_of(model: nn.Module) -> TableRows | None:
    """The rows of a model's item tables that this process holds; None for a model without an ItemTable."""
    return next((part.rows for part in model.modules() if isinstance(part, ItemTable)), None)
