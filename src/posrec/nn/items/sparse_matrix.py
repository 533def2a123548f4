"""SparseMatrix: a sparse matrix A for products with a table of vectors, and its transpose for their
gradients.

Both are lists: row i has the entries offsets[i] .. offsets[i + 1] - 1 of `columns` and `values`. So
a product and its gradient are sums of rows, without additions into shared rows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.nn.counting import offsets_of

SIZES = (
    8  # how many different lengths the lists of a matrix may have if they are padded
)
Multiply = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # table, offsets, columns, values -> product


class SparseMatrix(nn.Module):
    """It has no entries before `fill`, and none in a run: they are not saved with the weights."""

    offsets: Tensor
    columns: Tensor
    values: Tensor
    transposed_offsets: Tensor
    transposed_columns: Tensor
    transposed_values: Tensor

    def __init__(self) -> None:
        super().__init__()
        nothing = torch.empty(0, dtype=torch.int64)
        for prefix in ("", "transposed_"):
            self.set_lists(prefix, nothing.clone(), nothing.clone(), torch.empty(0))

    def set_lists(self, prefix: str, *lists: Tensor) -> None:
        for name, part in zip(("offsets", "columns", "values"), lists, strict=True):
            self.register_buffer(prefix + name, part, persistent=False)

    def fill(
        self,
        row: Tensor,
        column: Tensor,
        value: Tensor,
        shape: tuple[int, int],
        most: int | None = None,
    ) -> None:
        """Set the entries of A: rows, columns and values, [E] each.

        With `most`, the largest number of entries that there could be, the lists have unused places
        at their ends: a training step on a GPU is compiled for the sizes of its tensors, and the
        training on all sessions, after one on most of them, should find the same sizes."""
        device = self.values.device
        unused = 0 if most is None else -len(value) % math.ceil(most / SIZES)
        for prefix, outer, inner, size in (
            ("", row, column, shape[0]),
            ("transposed_", column, row, shape[1]),
        ):
            outer, order = outer.sort(stable=True)
            lists = (
                functional.pad(part[order], (0, unused)).to(device)
                for part in (inner, value)
            )
            self.set_lists(prefix, offsets_of(outer, size).to(device), *lists)

    def times(self, table: Tensor, multiply: Multiply | None = None) -> Tensor:
        """A T for T [columns, d]; or what `multiply` makes of a table and the lists, of A and then
        of its transpose."""
        forward = (self.offsets, self.columns, self.values)
        backward = (
            self.transposed_offsets,
            self.transposed_columns,
            self.transposed_values,
        )
        product: Tensor = SparseProduct.apply(
            table, multiply or sums_of_rows, *forward, *backward
        )  # type: ignore[no-untyped-call]
        return product


class SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, multiply: Multiply, *lists: Tensor) -> Tensor:
        ctx.save_for_backward(*lists[3:])
        ctx.multiply = multiply
        return multiply(table, *lists[:3])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.multiply(gradients[0], *ctx.saved_tensors), *([None] * 7)


def sums_of_rows(
    table: Tensor, offsets: Tensor, columns: Tensor, values: Tensor
) -> Tensor:
    """A T: each row of it is a weighted sum of rows of T."""
    return functional.embedding_bag(
        columns,
        table,
        offsets,
        mode="sum",
        per_sample_weights=values.to(table.dtype),
        include_last_offset=True,
    )
