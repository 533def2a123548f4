"""The gradient of an item table that is used twice: as inputs, and as the whole table."""

import pytest
import torch

from posrec.nn.items.item_table import ItemTable
from posrec.training.softmax import softmax_loss

ITEMS = torch.tensor([3, 7, 3, 50])
COUNTS = torch.bincount(ITEMS - 1, minlength=56).float()
TARGETS = torch.tensor([1, 2, 3, 4])


@pytest.fixture
def table() -> ItemTable:
    torch.manual_seed(0)
    return ItemTable(50, 8)


def gradient(table: ItemTable) -> torch.Tensor:
    assert table.weight.grad is not None
    return table.weight.grad


@pytest.mark.parametrize("chunk", [None, 16])
def test_both_uses_add_to_one_gradient(table: ItemTable, chunk: int | None) -> None:
    scores = (2 * table.weight[ITEMS - 1]) @ table.weight[:50].T
    torch.nn.functional.cross_entropy(scores, TARGETS - 1, reduction="sum").backward()
    expected = gradient(table)
    table.zero_grad()
    rows, vectors = table.look_up_and_table(ITEMS)
    softmax_loss(50, chunk)(2 * rows, vectors, TARGETS).sum().backward()
    assert torch.allclose(gradient(table), expected, atol=1e-5)


def test_the_gradient_of_the_softmax_is_not_copied(table: ItemTable) -> None:
    addresses: list[int] = []
    rows, vectors = table.look_up_and_table(ITEMS)
    vectors.register_hook(lambda gradient: addresses.append(gradient.data_ptr()))
    softmax_loss(50)(2 * rows, vectors, TARGETS).sum().backward()
    assert addresses == [gradient(table).data_ptr()]


def test_a_table_that_is_only_looked_up_has_a_dense_gradient(table: ItemTable) -> None:
    """Optimizers refuse gradients of different layouts."""
    table.look_up(ITEMS).sum().backward()
    assert torch.equal(gradient(table)[:, 0], COUNTS)


def test_a_gradient_with_another_use_is_left_as_it_is(table: ItemTable) -> None:
    """Both terms of a sum get the same tensor as their gradient."""
    other = torch.zeros(56, 8, requires_grad=True)
    rows, vectors = table.look_up_and_table(ITEMS)
    ((vectors + other).sum() + 5 * rows.sum()).backward()
    assert other.grad is not None
    assert torch.equal(other.grad, torch.ones(56, 8))
    assert torch.equal(gradient(table)[:, 0], 1 + 5 * COUNTS)
