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


def test_an_item_is_the_weighted_sum_of_its_values() -> None:
    part = AttributeVectors(8, d=2)
    assert not part.is_described
    part.describe(BAGS)
    with torch.no_grad():
        part.of_values.copy_(torch.tensor([[2.0, 0.0], [0.0, 3.0], [4.0, 4.0]]))
    expected = torch.tensor([[3.0, 2.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    assert torch.equal(part()[:4], expected)
    assert not part()[4:].any()
    assert part.described.tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
        False,
    ]
    part().sum().backward()
    assert part.of_values.grad is not None
    assert part.of_values.grad[:, 0].tolist() == [1.5, 1.0, 0.5]  # the columns of B


def test_vectors_of_ones_own_go_through_a_map() -> None:
    none = AttributeTable(
        torch.tensor([], dtype=torch.int64),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([]),
        0,
    )
    part = AttributeVectors(8, d=2)
    part.describe(
        none._replace(
            vectors=torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 0.0]])
        )
    )
    with torch.no_grad():
        part.map.copy_(torch.tensor([[1.0, 2.0], [5.0, 0.0], [0.0, 5.0]]))
    assert torch.allclose(
        part()[:3], torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
    )
    assert part.described.tolist()[:3] == [True, True, False]


def test_the_mean_of_items_that_share_attributes() -> None:
    table = torch.tensor([[1.0, 1.0], [4.0, 0.0], [9.0, 9.0], [7.0, 7.0]])
    known = torch.tensor([False, True, False, True])
    means, found = mean_by_attributes(BAGS, table, known)
    # Item 1 shares value 0 with item 2; no known item has the values 1 and 2; item 4 has no
    # attributes.
    assert found.tolist() == [True, True, False, False]
    assert means[0].tolist() == [4.0, 0.0]


def test_fitted_values_are_near_the_items_that_have_them() -> None:
    part = AttributeVectors(8, d=2)
    part.describe(BAGS)
    table = torch.zeros(8, 2)
    table[:3] = torch.tensor([[3.0, 0.0], [6.0, 3.0], [5.0, 5.0]])
    with torch.no_grad():
        part.fit(table)
    # Value 0: (0.5 * item 1 + 1 * item 2) / 1.5; an item's weights add up to 1.
    assert torch.allclose(
        part.of_values, torch.tensor([[5.0, 2.0], [5.0, 5.0], [3.0, 0.0]])
    )
