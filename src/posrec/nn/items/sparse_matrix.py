"""SparseMatrix: a sparse matrix A for products with a table of vectors, and its transpose for their
gradients.

Row i has the entries offsets[i] .. offsets[i + 1] - 1 of the lists `columns` and `values`, so a
product and its gradient are sums of rows, without additions into shared rows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.nn.counting import offsets_of

SIZES = 8  # how many different lengths the padded lists of a matrix may have
# table, offsets, columns, values -> product
Multiply = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class SparseMatrix(nn.Module):
    """It has entries after `fill`; they are not saved with the weights."""

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

    def set_lists(
        self, prefix: str, offsets: Tensor, columns: Tensor, values: Tensor
    ) -> None:
        self.register_buffer(f"{prefix}offsets", offsets, persistent=False)
        self.register_buffer(f"{prefix}columns", columns, persistent=False)
        self.register_buffer(f"{prefix}values", values, persistent=False)

    @property
    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The lists of the transpose."""
        return self.transposed_offsets, self.transposed_columns, self.transposed_values

    def fill(
        self,
        row: Tensor,
        column: Tensor,
        value: Tensor,
        shape: tuple[int, int],
        most: int | None = None,
    ) -> None:
        """Set the entries of A: rows, columns and values, [E] each.

        With `most`, the largest number of entries that there could be, the lists are padded: a step
        on a GPU is compiled for the sizes of its tensors, and the training on all sessions, after
        one on most of them, should find the same sizes."""
        device = self.values.device
        unused = 0 if most is None else -len(value) % math.ceil(most / SIZES)
        for prefix, outer, inner, size in (
            ("", row, column, shape[0]),
            ("transposed_", column, row, shape[1]),
        ):
            outer, order = outer.sort(stable=True)
            offsets = offsets_of(outer, size).to(device)
            columns = functional.pad(inner[order], (0, unused)).to(device)
            values = functional.pad(value[order], (0, unused)).to(device)
            self.set_lists(prefix, offsets, columns, values)

    def times(self, table: Tensor, multiply: Multiply | None = None) -> Tensor:
        """A T for T [columns, d]; or what `multiply` makes of a table and the lists, of A and then
        of its transpose."""
        lists = (self.offsets, self.columns, self.values, *self.transposed)
        product: Tensor = SparseProduct.apply(  # type: ignore[no-untyped-call]
            table, multiply or sums_of_rows, *lists
        )
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
