"""The softmax over all items, at once and in chunks, by a CPU's function and by the plain one; and
over a sample."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn import functional

from posrec.models.base import BatchVectors
from posrec.nn.items.own_items import OwnItems
from posrec.training import softmax
from posrec.training.losses import loss_for, losses_of, sampled_softmax
from posrec.training.softmax import softmax_loss

ITEMS = 17
# 0: a slot without an item
OWN = torch.tensor([[3, 0, 1], [2, 3, 4], [0, 0, 0], [17, 9, 0], [16, 0, 6]])
TARGETS = torch.tensor([3, 1, 9, 17, 5])
# Off a CPU, and from rounded numbers, the softmax is the plain one; its scores are in single
# precision.
ways = pytest.mark.parametrize(
    "on_cpu", [True, False], ids=["a CPU's way", "the plain way"]
)
chunks = pytest.mark.parametrize("chunk", [None, 1, 4])


def vectors(sessions: int = 5, items: int = ITEMS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(sessions, 4, dtype=torch.float64, requires_grad=True),
        torch.randn(items, 4, dtype=torch.float64, requires_grad=True),
    )


@ways
@chunks
@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([1.0, 1e3]),
)
def test_a_softmax_over_all_items_is_torchs_cross_entropy(
    on_cpu: bool,
    chunk: int | None,
    batch: int,
    items: int,
    more: int,
    d: int,
    scale: float,
) -> None:
    """Value and both gradients, with shares as training has them, equal targets, scores that exp
    can't hold, and rows after the last item."""
    random = torch.Generator().manual_seed(batch * items)
    drawn = torch.randn(batch, d, generator=random, dtype=torch.float64)
    sessions = (scale * drawn).requires_grad_()
    table = torch.randn(items + more, d, generator=random, dtype=torch.float64)
    table.requires_grad_()
    targets = torch.randint(1, items + 1, (batch,), generator=random)
    shares = torch.rand(batch, generator=random, dtype=torch.float64)
    scores = sessions @ table[:items].T
    expected = functional.cross_entropy(scores, targets - 1, reduction="none")
    with patch.object(softmax, "is_for_cpu", lambda _: on_cpu):
        losses = softmax_loss(items, chunk)(sessions, table, targets)
    near = {} if on_cpu else {"rtol": 1e-3, "atol": 1e-5 * scale}
    assert_alike(losses, expected, shares, [sessions, table], **near)


def assert_alike(
    losses: Tensor,
    expected: Tensor,
    shares: Tensor,
    inputs: list[Tensor],
    **near: Any,
) -> None:
    """The losses, and the gradients of their sum."""
    torch.testing.assert_close(losses.double(), expected, **near)
    gradients = torch.autograd.grad((losses * shares).sum(), inputs, retain_graph=True)
    of_expected = torch.autograd.grad((expected * shares).sum(), inputs)
    torch.testing.assert_close(gradients, of_expected, **near)


def own_items() -> OwnItems:
    """Own items with random deltas and chances of a repeat."""
    random = torch.Generator().manual_seed(4)
    drawn = torch.randn(OWN.shape, generator=random, dtype=torch.float64)
    raised = (3 * drawn).requires_grad_()
    repeat = torch.zeros_like(raised) - 3
    return OwnItems(OWN, raised, repeat, torch.zeros(len(OWN)))


@chunks
def test_steps_share_memory_and_not_values(chunk: int | None) -> None:
    """Also if there are two forward passes before the backward ones."""
    shared = softmax_loss(ITEMS, chunk)
    targets = torch.tensor([3, 1, 9, 17, 5, 5])
    begun = []
    for size in (5, 2, 6, 6):
        sessions, table = vectors(size)
        alone = softmax_loss(ITEMS, chunk)(sessions, table, targets[:size])
        gradient = torch.autograd.grad(alone.sum(), sessions)
        begun.append((shared(sessions, table, targets[:size]), sessions, gradient))
        if len(begun) == 2:
            for losses, sessions, gradient in begun:
                again = torch.autograd.grad(losses.sum(), sessions)
                torch.testing.assert_close(again, gradient)
            begun.clear()


@ways
@chunks
def test_own_items_are_raised_before_the_sum(on_cpu: bool, chunk: int | None) -> None:
    """Value and all gradients, against scores that are raised one by one."""
    sessions, table = vectors()
    own = own_items()
    # [B, R, n + 1] without the column of number 0, which is no item
    columns = functional.one_hot(OWN, ITEMS + 1)[:, :, 1:]
    scores = sessions @ table.T + (own.raised[:, :, None] * columns).sum(1)
    expected = functional.cross_entropy(scores, TARGETS - 1, reduction="none")
    shares = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    with patch.object(softmax, "is_for_cpu", lambda _: on_cpu):
        losses = softmax_loss(ITEMS, chunk)(sessions, table, TARGETS, own)
    inputs = [sessions, table, own.raised]
    assert_alike(losses, expected, shares, inputs, atol=1e-6, rtol=1e-5)


def test_a_lowered_item_that_dominates_the_sum_leaves_the_others_their_chances() -> (
    None
):
    """Computed from Z, S would be far off by what is rounded away."""
    sessions = torch.tensor([[1.0]])
    table = torch.tensor([[13.0], [1.0], [0.0]])
    own = OwnItems(
        torch.tensor([[1]]),
        torch.tensor([[-10.0]]),
        torch.tensor([[-50.0]]),
        torch.zeros(1),
    )
    batch = BatchVectors(sessions, table, own)
    loss = losses_of(softmax_loss(3), batch, torch.tensor([2]))
    expected = torch.tensor([3.0, 1.0, 0.0]).logsumexp(0) - 1.0
    assert float(loss) == pytest.approx(float(expected), abs=1e-4)


def test_sampled_loss_is_the_full_one_in_expectation() -> None:
    """With many draws the logQ-corrected loss approaches the full one; without the correction it
    would not."""
    sessions, table = vectors(sessions=1)
    numbers = torch.arange(1, ITEMS + 1)
    clicks = torch.repeat_interleave(numbers, 3 * numbers)  # very uneven popularity
    targets = torch.tensor([9])
    loss = sampled_softmax(clicks, negatives=4000)
    draws = torch.stack([loss(sessions, table, targets)[0].detach() for _ in range(60)])
    full = softmax_loss(ITEMS)(sessions, table, targets)[0].detach()
    assert abs(float(draws.mean() - full)) < 5 * float(draws.std()) / 60**0.5 + 0.01


def test_a_drawn_target_is_not_a_negative() -> None:
    sessions, table = vectors(sessions=1, items=1)
    loss = sampled_softmax(torch.ones(10, dtype=torch.long), negatives=5)
    assert loss(sessions, table, torch.tensor([1]))[0] == 0


def test_a_sampled_softmax_holds_the_own_items_as_they_are() -> None:
    """If every other item is drawn very often, it is the full one."""
    sessions, table = vectors()
    own = own_items()
    full = softmax_loss(ITEMS)(sessions, table, TARGETS, own)
    loss = sampled_softmax(torch.arange(1, ITEMS + 1), negatives=100_000)
    sampled = loss(sessions, table, TARGETS, own).double()
    torch.testing.assert_close(sampled, full, atol=0.02, rtol=0.02)


def test_the_loss_follows_the_catalogue_or_the_name() -> None:
    assert loss_for("auto", 1000) == "full"
    assert loss_for("auto", 1_000_000) == "chunked"
    assert loss_for("auto", 5_000_000) == "sampled"
    assert loss_for("full", 5_000_000) == "full"
