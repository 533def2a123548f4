"""Attributes of items (category, brand, price, words of a title, the user's own vectors) as a part
of the item vectors.

The attributes are a sparse matrix B [items, values] and, if the user gives vectors, a matrix V
[items, k]. With learned vectors T of the values and a learned map M, item i gets

    a_i = sum over values v of B_iv T_v + (V M)_i
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posrec.nn.items.item_table import random_table
from posrec.nn.items.sparse_matrix import SparseMatrix, sums_of_rows


class AttributeTable(NamedTuple):
    """The entries of B, sorted by item, and V. Row i is item i + 1. B_iv is 1 for a category, a
    brand or a range of prices, and 1 / (words of the title) for a word."""

    rows: Tensor  # [E] int64
    values: Tensor  # [E] int64, 0..number - 1
    weights: Tensor  # [E] float
    number: int  # of values
    vectors: Tensor | None = None  # [items, k], zeros where an item has none
    # What gives other items their entries, as JSON (data/attribute_reader.py).
    reader: Any = None


class AttributeVectors(nn.Module):
    """T, M and a_i. It has weights after `describe`. A run keeps them apart from the model's, for
    items that come later; the saved item vectors contain a_i."""

    described: Tensor
    clicked: Tensor
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
        self.reader = attributes.reader
        self.of_values = random_table(attributes.number, self.d)
        shape = (self.rows, attributes.number)
        self.matrix.fill(attributes.rows, attributes.values, attributes.weights, shape)
        described = torch.zeros(self.rows, dtype=torch.bool)
        described[attributes.rows] = True
        vectors = None
        if attributes.vectors is not None:
            vectors = torch.zeros(self.rows, attributes.vectors.shape[1])
            vectors[: len(attributes.vectors)] = attributes.vectors
            described |= vectors.any(1)
            self.map = random_table(vectors.shape[1], self.d)
        self.register_buffer("vectors", vectors, persistent=False)
        # [rows] whether an item has attributes, and clicks
        self.register_buffer("described", described, persistent=False)
        clicked = torch.ones(self.rows, dtype=torch.bool)
        self.register_buffer("clicked", clicked, persistent=False)

    def count(self, items: Tensor) -> None:
        """Clicks on items 1..rows of the training."""
        clicks = torch.bincount(items.long() - 1, minlength=self.rows)
        self.clicked = (clicks > 0).to(self.clicked.device)

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights, and what they need to be read."""
        return dict(self.named_parameters()), {"columns": self.reader}

    def fit(self, table: Tensor) -> None:
        """Set the weights so that a_i is near the vectors in `table [rows, d]` of the items that
        share its attributes: a value gets their mean, divided by the values of an item."""
        matrix = self.matrix
        total = matrix.values.sum() / (matrix.offsets.diff() > 0).sum().clamp(min=1)
        sums = sums_of_rows(table, *matrix.transposed)
        ones = table.new_ones(len(table), 1)
        weights = sums_of_rows(ones, *matrix.transposed)
        tiny = torch.finfo(table.dtype).tiny
        self.of_values.copy_(sums / (weights * total).clamp(min=tiny))
        if self.vectors is not None:
            self.map.zero_()

    def keep(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Set the weights that are given under their names with the prefix; NaN is none."""
        for name, parameter in self.named_parameters():
            if (given := weights.get(f"{prefix}{name}")) is not None:
                parameter.copy_(torch.where(given.isnan(), parameter, given))

    def forward(self) -> Tensor:
        """a, [rows, d]."""
        vectors = self.matrix.times(self.of_values)
        if self.vectors is None:
            return vectors
        return vectors + self.vectors.to(vectors.dtype) @ self.map


def mean_by_attributes(
    attributes: AttributeTable, table: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """The vectors that the attributes of items suggest, from the vectors of the known items that
    share them: `table [n, d]`, of which only the rows of `known [n]` are read.

    Returns [n, d] the weighted mean over an item's values of the mean vector of the known items
    with that value, and [n] bool, whether a known item shares a value with the item."""
    tiny = torch.finfo(table.dtype).tiny
    rows = attributes.rows
    values = attributes.values
    weights = attributes.weights.to(table.dtype)[:, None]
    read = known[rows]
    value_sums = table.new_zeros(attributes.number, table.shape[1])
    value_weights = table.new_zeros(attributes.number, 1)
    value_sums.index_add_(0, values[read], weights[read] * table[rows[read]])
    value_weights.index_add_(0, values[read], weights[read])
    value_means = value_sums / value_weights.clamp(min=tiny)
    shared = (value_weights[values] > 0).to(table.dtype) * weights
    sums = torch.zeros_like(table).index_add_(0, rows, shared * value_means[values])
    total = table.new_zeros(len(table), 1).index_add_(0, rows, shared)
    return sums / total.clamp(min=tiny), total[:, 0] > 0
