"""Vectors of attributes against sums by hand."""

import torch

from posrec.nn.items.attribute_vectors import (
    AttributeTable,
    AttributeVectors,
    mean_by_attributes,
)

# Item 1: values 0 and 2 (half each: words). Item 2: value 0. Item 3: value 1. Item 4: none.
BAGS = AttributeTable(
    torch.tensor([0, 0, 1, 2]),
    torch.tensor([0, 2, 0, 1]),
    torch.tensor([0.5, 0.5, 1.0, 1.0]),
    number=3,
)


def described(attributes: AttributeTable) -> AttributeVectors:
    vectors = AttributeVectors(8, d=2)
    assert not vectors.is_described
    vectors.describe(attributes)
    return vectors.requires_grad_(False)


def test_an_item_is_the_weighted_sum_of_its_values() -> None:
    vectors = described(BAGS)
    vectors.of_values.copy_(torch.tensor([[2.0, 0.0], [0.0, 3.0], [4.0, 4.0]]))
    expected = torch.tensor([[3.0, 2.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    assert torch.equal(vectors()[:4], expected)
    assert not vectors()[4:].any()
    assert vectors.described.tolist() == [True] * 3 + [False] * 5
    vectors.requires_grad_()().sum().backward()
    assert vectors.of_values.grad is not None
    assert vectors.of_values.grad[:, 0].tolist() == [1.5, 1.0, 0.5]  # the columns of B


def test_vectors_of_ones_own_go_through_a_map() -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    own = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 0.0]])
    vectors = described(AttributeTable(nothing, nothing, torch.tensor([]), 0, own))
    vectors.map.copy_(torch.tensor([[1.0, 2.0], [5.0, 0.0], [0.0, 5.0]]))
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
    assert torch.allclose(vectors()[:3], expected)
    assert vectors.described.tolist()[:3] == [True, True, False]


def test_the_mean_of_items_that_share_attributes() -> None:
    table = torch.tensor([[1.0, 1.0], [4.0, 0.0], [9.0, 9.0], [7.0, 7.0]])
    known = torch.tensor([False, True, False, True])
    means, is_shared = mean_by_attributes(BAGS, table, known)
    # Item 1 shares value 0 with item 2; no known item has the values 1 and 2; item 4 has no
    # attributes.
    assert is_shared.tolist() == [True, True, False, False]
    assert means[0].tolist() == [4.0, 0.0]


def test_fitted_values_are_near_the_items_that_have_them() -> None:
    vectors = described(BAGS)
    table = torch.zeros(8, 2)
    table[:3] = torch.tensor([[3.0, 0.0], [6.0, 3.0], [5.0, 5.0]])
    vectors.fit(table)
    # Value 0: (0.5 * item 1 + 1 * item 2) / 1.5; an item's weights add up to 1.
    expected = torch.tensor([[5.0, 2.0], [5.0, 5.0], [3.0, 0.0]])
    assert torch.allclose(vectors.of_values, expected)
