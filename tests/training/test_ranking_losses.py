"""Ranking losses by hand, and what holds for all of them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from posrec.errors import InputError
from posrec.training.losses import choose_loss
from posrec.training.ranking_losses import comparisons, drawing
from posrec.training.settings import RANKING_LOSSES, Settings

NUMBERS = torch.arange(1, 7)
CLICKS = torch.repeat_interleave(NUMBERS, 2**NUMBERS)  # item i is clicked 2^i times


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def product(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def slowly(
    name: str, target: float, others: list[float], score_l2: float = 0.5
) -> float:
    """The papers' formulas over a list of negatives, in plain Python."""
    total = sum(math.exp(other) for other in others)
    softmax = [math.exp(other) / total for other in others]
    top1 = [sigmoid(other - target) + sigmoid(other**2) for other in others]
    if name == "bpr":
        return sum(-math.log(sigmoid(target - other)) for other in others) / len(others)
    if name == "top1":
        return sum(top1) / len(others)
    if name == "top1-max":
        return product(softmax, top1)
    won = product(softmax, [sigmoid(target - other) for other in others])
    large = product(softmax, [other**2 for other in others])
    return -math.log(won) + score_l2 * large


def compare(
    name: str, target: float, others: list[float], counts: list[bool] | None = None
) -> Tensor:
    counted = torch.tensor([counts or [True] * len(others)])
    function = comparisons(score_l2=0.5)[name]
    return function(torch.tensor([[target]]), torch.tensor([others]), counted)[0]


scores = st.floats(-4, 4, width=32)


@given(
    st.sampled_from(RANKING_LOSSES),
    scores,
    st.lists(scores, min_size=1, max_size=6),
    st.floats(0.0625, 3, width=32),
)
def test_a_better_scored_target_costs_less(
    name: str, target: float, others: list[float], better: float
) -> None:
    loss = float(compare(name, target, others))
    assert loss == pytest.approx(slowly(name, target, others), rel=1e-4)
    assert compare(name, target + better, others) < loss


@given(
    st.sampled_from(RANKING_LOSSES),
    scores,
    st.lists(scores, min_size=1, max_size=4),
    st.lists(scores, max_size=3),
)
def test_what_does_not_count_changes_nothing(
    name: str, target: float, others: list[float], left: list[float]
) -> None:
    counts = [True] * len(others) + [False] * len(left)
    loss = compare(name, target, others + left, counts)
    expected = compare(name, target, others)
    assert torch.allclose(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_nothing_to_compare_with_costs_nothing_and_moves_nothing(name: str) -> None:
    sessions = torch.randn(3, 4, requires_grad=True)
    settings = Settings(loss=name, negatives=2)
    loss = choose_loss(settings, 1, torch.ones(5, dtype=torch.long))
    value = loss(sessions, torch.randn(1, 4), torch.ones(3, dtype=torch.long))
    value.sum().backward()
    assert value.tolist() == [0, 0, 0]
    assert sessions.grad is not None
    assert sessions.grad.abs().sum() == 0


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_scores_far_apart_stay_finite(name: str) -> None:
    target = torch.tensor([[-200.0]], requires_grad=True)
    others = torch.tensor([[200.0, -200.0]])
    value = comparisons(0.0)[name](target, others, torch.tensor([[True, True]]))
    value.sum().backward()
    assert value.isfinite().all()
    assert target.grad is not None
    assert target.grad.isfinite().all()
    if name.startswith("bpr"):
        # The gradient does not vanish where it is needed most.
        assert target.grad.item() < -0.4


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_targets_of_the_batch_are_each_other_s_negatives(name: str) -> None:
    torch.manual_seed(0)
    sessions = torch.randn(4, 3)
    table = torch.randn(9, 3)
    # Two samples have the same target: it is no negative of either.
    targets = torch.tensor([2, 7, 2, 5])
    loss = choose_loss(Settings(loss=name, negatives=0, score_l2=0.5), 9, CLICKS)
    losses = loss(sessions, table, targets)
    for scores, target, value in zip(sessions @ table.T, targets, losses, strict=True):
        others = scores[targets[targets != target] - 1].tolist()
        expected = slowly(name, float(scores[target - 1]), others)
        assert float(value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_many_uniform_draws_are_all_items(name: str) -> None:
    """Drawn uniformly, the negatives' average and softmax approach those over all items but the
    target."""
    torch.manual_seed(1)
    sessions = torch.randn(2, 3)
    table = torch.randn(6, 3)
    targets = torch.tensor([4, 1])
    settings = Settings(loss=name, negatives=200_000, in_batch=False, score_l2=0.5)
    losses = choose_loss(settings, 6, CLICKS)(sessions, table, targets)
    for scores, target, value in zip(sessions @ table.T, targets, losses, strict=True):
        others = scores[target != NUMBERS].tolist()
        expected = slowly(name, float(scores[target - 1]), others)
        assert float(value) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_items_are_drawn_by_popularity_to_a_power(alpha: float) -> None:
    torch.manual_seed(2)
    drawn = drawing(7, CLICKS, 100_000, alpha)()  # item 7 was never clicked
    shares = torch.bincount(drawn, minlength=8)[1:] / len(drawn)
    weights = torch.tensor([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 0.0]) ** alpha
    assert drawn.min() >= 1
    assert torch.allclose(shares, weights / weights.sum(), atol=0.01)


def test_rows_past_the_items_are_never_drawn() -> None:
    table = torch.randn(8, 3, requires_grad=True)
    loss = choose_loss(Settings(loss="bpr", negatives=5000), 6, CLICKS)
    loss(torch.randn(2, 3), table, torch.tensor([1, 6])).sum().backward()
    assert table.grad is not None
    assert table.grad[6:].abs().sum() == 0
    assert (table.grad[:6].abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    "name", ["auto", "full", "chunked", "sampled", *RANKING_LOSSES]
)
def test_every_name_is_a_setting_and_a_loss(name: str) -> None:
    loss = choose_loss(Settings(loss=name).check(), 6, CLICKS)
    value = loss(torch.randn(2, 3), torch.randn(6, 3), torch.tensor([1, 6]))
    assert value.shape == (2,)
    assert value.isfinite().all()


@pytest.mark.parametrize(
    "wrong",
    [{"negatives": -1}, {"negatives": 0, "in_batch": False}, {"sample_alpha": -0.5}],
)
def test_settings_that_leave_nothing_to_compare_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least"):
        Settings(loss="bpr", **wrong).check()
