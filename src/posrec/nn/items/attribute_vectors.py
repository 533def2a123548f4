"""What items are (category, brand, price, words of a title, vectors of the user's own), as a part
of their vectors.

The attributes of the items are a sparse matrix B [items, values] and, where there are vectors of
the user's own, a matrix V [items, k]. With learned vectors T of the values and a learned map M, the
attributes of item i add up to

    a_i = sum over values v of B_iv T_v + (V M)_i

B_iv is 1 for a category, a brand or a range of prices, and 1 / (words of the title) for a word.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posrec.nn.items.sparse_matrix import SparseMatrix, sums_of_rows


class AttributeTable(NamedTuple):
    """The entries of B, sorted by item, and V. Row i is item i + 1."""

    rows: Tensor  # [E] int64
    values: Tensor  # [E] int64, 0..number - 1
    weights: Tensor  # [E] float
    number: int  # of values
    vectors: Tensor | None = None  # [items, k], zeros where an item has none


class AttributeVectors(nn.Module):
    """T, M and a_i. It has no weights before `describe`, and none in a run: they are part of the
    saved item vectors."""

    described: Tensor
    vectors: Tensor | None

    def __init__(self, rows: int, d: int) -> None:
        super().__init__()
        self.rows = rows
        self.d = d
        self.matrix = SparseMatrix()  # B

    @property
    def is_described(self) -> bool:
        return "of_values" in self._parameters

    def describe(self, attributes: AttributeTable) -> None:
        """Create the weights for these attributes."""
        bound = 1 / math.sqrt(self.d)
        self.of_values = nn.Parameter(
            torch.empty(attributes.number, self.d).uniform_(-bound, bound)
        )
        shape = (self.rows, attributes.number)
        self.matrix.fill(attributes.rows, attributes.values, attributes.weights, shape)
        has = torch.zeros(self.rows, dtype=torch.bool)
        has[attributes.rows] = True
        self.vectors = None
        if attributes.vectors is not None:
            given = torch.zeros(self.rows, attributes.vectors.shape[1])
            given[: len(attributes.vectors)] = attributes.vectors
            has |= given.any(1)
            del self.vectors
            self.register_buffer("vectors", given, persistent=False)
            self.map = nn.Parameter(
                torch.empty(given.shape[1], self.d).uniform_(-bound, bound)
            )
        self.register_buffer(
            "described", has, persistent=False
        )  # [rows] whether an item has attributes

    def fit(self, table: Tensor) -> None:
        """Set the weights so that a_i is near the vectors of the items in `table [rows, d]` that
        share its attributes: a value gets their mean, divided by the number of values of an item.
        """
        matrix = self.matrix
        total = matrix.values.sum() / (matrix.offsets.diff() > 0).sum().clamp(min=1)
        by_value = (
            matrix.transposed_offsets,
            matrix.transposed_columns,
            matrix.transposed_values,
        )
        sums, weights = (
            sums_of_rows(vectors, *by_value)
            for vectors in (table, table.new_ones(len(table), 1))
        )
        self.of_values.copy_(
            sums / (weights * total).clamp(min=torch.finfo(table.dtype).tiny)
        )
        if self.vectors is not None:
            self.map.zero_()

    def forward(self) -> Tensor:
        """a, [rows, d]."""
        vectors = self.matrix.times(self.of_values)
        return (
            vectors
            if self.vectors is None
            else vectors + self.vectors.to(vectors.dtype) @ self.map
        )


def mean_by_attributes(
    attributes: AttributeTable, table: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """The vectors that the attributes of items suggest, from the vectors of the known items that
    share them.

    Args:
        table: [n, d] item vectors; only those of the known items are read.
        known: [n] bool.

    Returns:
        [n, d] the weighted mean over an item's values of the mean vector of the known items with that value, and [n]
        bool, whether a known item shares a value with the item.
    """
    rows = attributes.rows
    values = attributes.values
    weights = attributes.weights.to(table.dtype)[:, None]
    read = known[rows]
    of_values = table.new_zeros(attributes.number, table.shape[1])
    in_values = table.new_zeros(attributes.number, 1)
    of_values.index_add_(0, values[read], weights[read] * table[rows[read]])
    in_values.index_add_(0, values[read], weights[read])
    of_values = of_values / in_values.clamp(min=torch.finfo(table.dtype).tiny)
    shared = (in_values[values] > 0).to(table.dtype) * weights
    sums = torch.zeros_like(table).index_add_(0, rows, shared * of_values[values])
    total = table.new_zeros(len(table), 1).index_add_(0, rows, shared)
    return sums / total.clamp(min=torch.finfo(table.dtype).tiny), total[:, 0] > 0
