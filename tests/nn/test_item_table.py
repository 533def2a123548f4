"""The gradient of an item table that is used twice: as inputs, and as the whole table."""

import torch
from torch import Tensor

from posrec.nn.items.item_table import ItemTable
from posrec.training.softmax import softmax_loss

ITEMS = torch.tensor([3, 7, 3, 50])
TARGETS = torch.tensor([1, 2, 3, 4])


def table() -> ItemTable:
    torch.manual_seed(0)
    return ItemTable(50, 8)


def plain_gradient() -> Tensor:
    """By torch's own functions alone."""
    weight = table().weight
    scores = (2 * weight[ITEMS - 1]) @ weight[:50].T
    torch.nn.functional.cross_entropy(scores, TARGETS - 1, reduction="sum").backward()
    assert weight.grad is not None
    return weight.grad


def test_both_uses_add_to_one_gradient() -> None:
    for loss in (softmax_loss(50), softmax_loss(50, chunk=16)):
        one = table()
        rows, whole = one.look_up_and_table(ITEMS)
        loss(2 * rows, whole, TARGETS).sum().backward()
        assert one.weight.grad is not None
        assert torch.allclose(one.weight.grad, plain_gradient(), atol=1e-5)


def test_the_gradient_of_the_softmax_is_not_copied() -> None:
    found: list[int] = []
    one = table()
    rows, whole = one.look_up_and_table(ITEMS)
    whole.register_hook(lambda gradient: found.append(gradient.data_ptr()))
    softmax_loss(50)(2 * rows, whole, TARGETS).sum().backward()
    assert one.weight.grad is not None
    assert found == [one.weight.grad.data_ptr()]


def test_a_table_that_is_only_looked_up_has_a_dense_gradient() -> None:
    """Optimizers refuse gradients of different layouts."""
    one = table()
    one.look_up(ITEMS).sum().backward()
    assert one.weight.grad is not None
    assert one.weight.grad[:, 0].tolist() == [
        float(ITEMS.tolist().count(row + 1)) for row in range(56)
    ]


def test_a_gradient_with_another_use_is_left_as_it_is() -> None:
    """Both terms of a sum get the same tensor as their gradient."""
    one = table()
    other = torch.zeros(56, 8, requires_grad=True)
    rows, whole = one.look_up_and_table(ITEMS)
    ((whole + other).sum() + 5 * rows.sum()).backward()
    assert other.grad is not None
    assert torch.equal(other.grad, torch.ones(56, 8))
    assert one.weight.grad is not None
    assert one.weight.grad[:, 0].tolist() == [
        1 + 5 * ITEMS.tolist().count(row + 1) for row in range(56)
    ]
