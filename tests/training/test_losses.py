"""The softmax over all items, computed in three ways."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from posrec.nn.items.own_items import OwnItems
from posrec.training import losses
from posrec.training.losses import Loss, choose_loss, chunked_softmax, full_softmax, loss_for, sampled_softmax


def vectors(sessions: int = 5, items: int = 17, d: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return (
        torch.randn(sessions, d, dtype=torch.float64, requires_grad=True),
        torch.randn(items, d, dtype=torch.float64, requires_grad=True),
        torch.randint(1, items + 1, (sessions,)),
    )


@pytest.fixture(params=[True, False], ids=["a CPU's way", "torch's way"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a CPU, and from rounded numbers, the softmax is torch's."""
    monkeypatch.setattr(losses, "served_by_cpu", lambda _: request.param)


@pytest.mark.usefixtures("way")
def test_full_softmax_by_hand() -> None:
    sessions, items = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    expected = torch.tensor([0.0, 1.0, 2.0]).logsumexp(0) - 1.0
    assert full_softmax(3)(sessions, items, torch.tensor([2]))[0] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 100])
def test_chunks_change_neither_value_nor_gradient(chunk: int) -> None:
    sessions, items, targets = vectors()
    outcomes = []
    for loss in (full_softmax(17), chunked_softmax(17, chunk=chunk)):
        value = loss(sessions, items, targets)
        outcomes.append([value, *torch.autograd.grad(value.sum(), [sessions, items])])
    for whole, chunked in zip(*outcomes, strict=True):
        assert torch.allclose(whole.double(), chunked.double(), atol=1e-5)


def test_sampled_loss_is_the_full_one_in_expectation() -> None:
    """With many draws the logQ-corrected loss approaches the full one; without the correction it would not."""
    torch.manual_seed(1)
    sessions, items, _ = vectors(sessions=1)
    clicks = torch.cat([torch.full((3 * number,), number) for number in range(1, 18)])  # very uneven popularity
    targets = torch.tensor([9])
    loss = sampled_softmax(clicks, negatives=4000)
    draws = torch.stack([loss(sessions, items, targets)[0].detach() for _ in range(60)])
    full = full_softmax(17)(sessions, items, targets)[0].detach()
    assert abs(float(draws.mean() - full)) < 5 * float(draws.std()) / 60**0.5 + 0.01


def test_a_drawn_target_is_not_a_negative() -> None:
    sessions, items, _ = vectors(sessions=1, items=1)
    loss = sampled_softmax(torch.ones(10, dtype=torch.long), negatives=5)
    assert loss(sessions, items, torch.tensor([1]))[0] == 0


def test_the_loss_follows_the_catalogue_or_the_name() -> None:
    assert [loss_for(items) for items in (1000, 1_000_000, 5_000_000)] == ["full", "chunked", "sampled"]
    with pytest.raises(ValueError, match=r"loss must be one of auto, .*, not 'hinge'"):
        choose_loss("hinge", 10, torch.tensor([1, 2]))


@pytest.mark.parametrize("chunk", [None, 1, 4])
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 3), st.integers(1, 4), st.sampled_from([1.0, 1e3]))
def test_a_softmax_over_all_items_is_torchs_cross_entropy(
    chunk: int | None, batch: int, items: int, more: int, d: int, scale: float
) -> None:
    """Value and both gradients, with shares as training has them, equal targets, and scores that exp can't hold."""
    random = torch.Generator().manual_seed(batch * items)
    sessions = (scale * torch.randn(batch, d, generator=random, dtype=torch.float64)).requires_grad_()
    table = torch.randn(items + more, d, generator=random, dtype=torch.float64).requires_grad_()
    targets = torch.randint(1, items + 1, (batch,), generator=random)
    shares = torch.rand(batch, generator=random, dtype=torch.float64)
    plain = functional.cross_entropy(sessions @ table[:items].T, targets - 1, reduction="none")
    expected = torch.autograd.grad((plain * shares).sum(), [sessions, table])
    loss = full_softmax(items) if chunk is None else chunked_softmax(items, chunk)
    ours = loss(sessions, table, targets)
    found = torch.autograd.grad((ours * shares).sum(), [sessions, table])
    torch.testing.assert_close(ours, plain)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def own_items(sessions: torch.Tensor, table: torch.Tensor, items: list[list[int]]) -> OwnItems:
    """Own items with random deltas and chances of a repeat; slots without an item are 0."""
    numbers = torch.tensor(items)
    random = torch.Generator().manual_seed(4)
    raised = (3 * torch.randn(numbers.shape, generator=random, dtype=torch.float64)).requires_grad_()
    products = (sessions[:, None] * table[(numbers - 1).clamp(min=0)]).sum(2)
    return OwnItems(numbers, products, raised, torch.zeros_like(raised) - 3, torch.zeros(len(numbers)))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("loss", [full_softmax(17), chunked_softmax(17, chunk=5)], ids=["full", "chunked"])
def test_own_items_are_raised_before_the_sum(loss: Loss) -> None:
    """Value and all gradients, against scores that are raised one by one."""
    sessions, table, _ = vectors()
    targets = torch.tensor([3, 1, 9, 17, 5])
    own = own_items(sessions, table, [[3, 0, 1], [2, 3, 4], [0, 0, 0], [17, 9, 0], [16, 0, 6]])
    scores = sessions @ table.T
    rows = [row.clone() for row in scores]
    for row, (items, amounts) in enumerate(zip(own.items.tolist(), own.raised, strict=True)):
        for item, amount in zip(items, amounts, strict=True):
            if item:
                rows[row] = rows[row] + amount * functional.one_hot(torch.tensor(item - 1), 17)
    plain = functional.cross_entropy(torch.stack(rows), targets - 1, reduction="none")
    shares = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    wanted = [sessions, table, own.raised]
    ours = loss(sessions, table, targets, own)
    torch.testing.assert_close(ours.double(), plain, atol=1e-6, rtol=1e-5)
    expected = torch.autograd.grad((plain * shares).sum(), wanted, retain_graph=True)
    found = torch.autograd.grad((ours * shares).sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_sampled_softmax_holds_the_own_items_as_they_are() -> None:
    """Where every other item is drawn very often, it is the full one."""
    torch.manual_seed(2)
    sessions, table, _ = vectors()
    targets = torch.tensor([3, 1, 9, 17, 5])
    own = own_items(sessions, table, [[3, 0, 1], [2, 3, 4], [0, 0, 0], [17, 9, 0], [16, 0, 6]])
    full = full_softmax(17)(sessions, table, targets, own)
    loss = sampled_softmax(torch.arange(1, 18), negatives=100_000)
    torch.testing.assert_close(loss(sessions, table, targets, own).double(), full.double(), atol=0.02, rtol=0.02)


def test_a_lowered_item_that_dominates_the_sum_leaves_the_others_their_chances() -> None:
    """Its product is wrong by what reduced precision rounds away; computed from Z, S would then be far off."""
    sessions, table = torch.tensor([[1.0]]), torch.tensor([[13.0], [1.0], [0.0]])
    wrong = torch.tensor([[13.01]])  # of the own item, item 1
    own = OwnItems(torch.tensor([[1]]), wrong, torch.tensor([[-10.0]]), torch.tensor([[-50.0]]), torch.zeros(1))
    found = losses.losses_of(full_softmax(3), losses.Encoded(sessions, table, own), torch.tensor([2]))
    expected = torch.tensor([3.0, 1.0, 0.0]).logsumexp(0) - 1.0
    assert float(found) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("loss", [full_softmax(17), chunked_softmax(17, chunk=5)], ids=["full", "chunked"])
def test_rows_after_the_last_item_are_ignored(loss: Loss) -> None:
    sessions, items, targets = vectors()
    longer = torch.cat([items, torch.full((7, 4), 9.0, dtype=torch.float64)]).detach().requires_grad_()
    assert torch.allclose(loss(sessions, longer, targets), loss(sessions, items, targets), atol=1e-6)
    loss(sessions, longer, targets).sum().backward()
    assert longer.grad is not None
    assert longer.grad[17:].abs().sum() == 0
