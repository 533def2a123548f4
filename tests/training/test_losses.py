"""The softmax over all items, at once and in chunks, by a CPU's function and by the plain one; and
over a sample."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from posrec.nn.items.own_items import OwnItems
from posrec.training import losses, softmax
from posrec.training.losses import loss_for, sampled_softmax
from posrec.training.softmax import softmax_loss

OWN = [
    [3, 0, 1],
    [2, 3, 4],
    [0, 0, 0],
    [17, 9, 0],
    [16, 0, 6],
]  # 0: a slot without an item
TARGETS = torch.tensor([3, 1, 9, 17, 5])
# Off a CPU, and from rounded numbers, the softmax is the plain one; its scores are in single
# precision.
ways = pytest.mark.parametrize(
    "on_cpu", [True, False], ids=["a CPU's way", "the plain way"]
)
chunks = pytest.mark.parametrize("chunk", [None, 1, 4])


def vectors(sessions: int = 5, items: int = 17, d: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return (
        torch.randn(sessions, d, dtype=torch.float64, requires_grad=True),
        torch.randn(items, d, dtype=torch.float64, requires_grad=True),
        torch.randint(1, items + 1, (sessions,)),
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
    sessions = (
        scale * torch.randn(batch, d, generator=random, dtype=torch.float64)
    ).requires_grad_()
    table = torch.randn(
        items + more, d, generator=random, dtype=torch.float64
    ).requires_grad_()
    targets = torch.randint(1, items + 1, (batch,), generator=random)
    shares = torch.rand(batch, generator=random, dtype=torch.float64)
    plain = functional.cross_entropy(
        sessions @ table[:items].T, targets - 1, reduction="none"
    )
    expected = torch.autograd.grad((plain * shares).sum(), [sessions, table])
    with patch.object(softmax, "is_for_cpu", lambda _: on_cpu):
        ours = softmax_loss(items, chunk)(sessions, table, targets)
    found = torch.autograd.grad((ours * shares).sum(), [sessions, table])
    near = {} if on_cpu else {"rtol": 1e-3, "atol": 1e-5 * scale}
    torch.testing.assert_close(ours.double(), plain, **near)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **near)


def own_items(sessions: torch.Tensor, table: torch.Tensor) -> OwnItems:
    """Own items with random deltas and chances of a repeat."""
    numbers = torch.tensor(OWN)
    random = torch.Generator().manual_seed(4)
    raised = (
        3 * torch.randn(numbers.shape, generator=random, dtype=torch.float64)
    ).requires_grad_()
    products = (sessions[:, None] * table[(numbers - 1).clamp(min=0)]).sum(2)
    return OwnItems(
        numbers,
        products,
        raised,
        torch.zeros_like(raised) - 3,
        torch.zeros(len(numbers)),
    )


@ways
@chunks
def test_own_items_are_raised_before_the_sum(on_cpu: bool, chunk: int | None) -> None:
    """Value and all gradients, against scores that are raised one by one."""
    sessions, table, _ = vectors()
    own = own_items(sessions, table)
    rows = list((sessions @ table.T).unbind())
    for row, (items, amounts) in enumerate(
        zip(own.items.tolist(), own.raised, strict=True)
    ):
        for item, amount in zip(items, amounts, strict=True):
            if item:
                rows[row] = rows[row] + amount * functional.one_hot(
                    torch.tensor(item - 1), 17
                )
    plain = functional.cross_entropy(torch.stack(rows), TARGETS - 1, reduction="none")
    shares = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    wanted = [sessions, table, own.raised]
    with patch.object(softmax, "is_for_cpu", lambda _: on_cpu):
        ours = softmax_loss(17, chunk)(sessions, table, TARGETS, own)
    torch.testing.assert_close(ours.double(), plain, atol=1e-6, rtol=1e-5)
    expected = torch.autograd.grad((plain * shares).sum(), wanted, retain_graph=True)
    found = torch.autograd.grad((ours * shares).sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_lowered_item_that_dominates_the_sum_leaves_the_others_their_chances() -> (
    None
):
    """Its product is wrong by what reduced precision rounds away; computed from Z, S would then be
    far off."""
    sessions = torch.tensor([[1.0]])
    table = torch.tensor([[13.0], [1.0], [0.0]])
    wrong = torch.tensor([[13.01]])  # of the own item, item 1
    own = OwnItems(
        torch.tensor([[1]]),
        wrong,
        torch.tensor([[-10.0]]),
        torch.tensor([[-50.0]]),
        torch.zeros(1),
    )
    found = losses.losses_of(
        softmax_loss(3), losses.BatchVectors(sessions, table, own), torch.tensor([2])
    )
    expected = torch.tensor([3.0, 1.0, 0.0]).logsumexp(0) - 1.0
    assert float(found) == pytest.approx(float(expected), abs=1e-4)


def test_sampled_loss_is_the_full_one_in_expectation() -> None:
    """With many draws the logQ-corrected loss approaches the full one; without the correction it
    would not."""
    torch.manual_seed(1)
    sessions, items, _ = vectors(sessions=1)
    clicks = torch.cat(
        [torch.full((3 * number,), number) for number in range(1, 18)]
    )  # very uneven popularity
    targets = torch.tensor([9])
    loss = sampled_softmax(clicks, negatives=4000)
    draws = torch.stack([loss(sessions, items, targets)[0].detach() for _ in range(60)])
    full = softmax_loss(17)(sessions, items, targets)[0].detach()
    assert abs(float(draws.mean() - full)) < 5 * float(draws.std()) / 60**0.5 + 0.01


def test_a_drawn_target_is_not_a_negative() -> None:
    sessions, items, _ = vectors(sessions=1, items=1)
    loss = sampled_softmax(torch.ones(10, dtype=torch.long), negatives=5)
    assert loss(sessions, items, torch.tensor([1]))[0] == 0


def test_a_sampled_softmax_holds_the_own_items_as_they_are() -> None:
    """Where every other item is drawn very often, it is the full one."""
    torch.manual_seed(2)
    sessions, table, _ = vectors()
    own = own_items(sessions, table)
    full = softmax_loss(17)(sessions, table, TARGETS, own)
    loss = sampled_softmax(torch.arange(1, 18), negatives=100_000)
    torch.testing.assert_close(
        loss(sessions, table, TARGETS, own).double(),
        full.double(),
        atol=0.02,
        rtol=0.02,
    )


def test_the_loss_follows_the_catalogue_or_the_name() -> None:
    assert [loss_for("auto", items) for items in (1000, 1_000_000, 5_000_000)] == [
        "full",
        "chunked",
        "sampled",
    ]
    assert loss_for("full", 5_000_000) == "full"
