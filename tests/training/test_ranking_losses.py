"""Ranking losses by hand, and what holds for all of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posrec.errors import InputError
from posrec.training.losses import choose_loss
from posrec.training.ranking_losses import comparisons, drawing
from posrec.training.settings import RANKING_LOSSES, Settings

CLICKS = torch.cat(
    [torch.full((2**number,), number) for number in range(1, 7)]
)  # item i is clicked 2^i times


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slowly(
    name: str, target: float, others: list[float], score_l2: float = 0.5
) -> float:
    """The papers' formulas over a list of negatives, in plain Python."""
    total = sum(math.exp(other) for other in others)
    softmax = [math.exp(other) / total for other in others]
    if name == "bpr":
        return sum(-math.log(sigmoid(target - other)) for other in others) / len(others)
    if name == "top1":
        return sum(
            sigmoid(other - target) + sigmoid(other**2) for other in others
        ) / len(others)
    if name == "top1-max":
        parts = (sigmoid(other - target) + sigmoid(other**2) for other in others)
        return sum(s * part for s, part in zip(softmax, parts, strict=True))
    won = sum(
        s * sigmoid(target - other) for s, other in zip(softmax, others, strict=True)
    )
    return -math.log(won) + score_l2 * sum(
        s * other**2 for s, other in zip(softmax, others, strict=True)
    )


def compare(
    name: str, target: float, others: list[float], counts: list[bool] | None = None
) -> Tensor:
    counted = torch.tensor([counts or [True] * len(others)])
    return comparisons(score_l2=0.5)[name](
        torch.tensor([[target]]), torch.tensor([others]), counted
    )[0]


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
    assert float(compare(name, target, others)) == pytest.approx(
        slowly(name, target, others), rel=1e-4
    )
    assert compare(name, target + better, others) < compare(name, target, others)


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
    assert float(compare(name, target, others + left, counts)) == pytest.approx(
        float(compare(name, target, others)), rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_nothing_to_compare_with_costs_nothing_and_moves_nothing(name: str) -> None:
    sessions = torch.randn(3, 4, requires_grad=True)
    loss = choose_loss(
        Settings(loss=name, negatives=2), 1, torch.ones(5, dtype=torch.long)
    )
    value = loss(sessions, torch.randn(1, 4), torch.ones(3, dtype=torch.long))
    value.sum().backward()
    assert value.tolist() == [0, 0, 0]
    assert sessions.grad is not None
    assert sessions.grad.abs().sum() == 0


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_scores_far_apart_stay_finite(name: str) -> None:
    target = torch.tensor([[-200.0]], requires_grad=True)
    value = comparisons(0.0)[name](
        target, torch.tensor([[200.0, -200.0]]), torch.ones(1, 2, dtype=torch.bool)
    )
    value.sum().backward()
    assert value.isfinite().all()
    assert target.grad is not None
    assert target.grad.isfinite().all()
    if name.startswith("bpr"):
        assert (
            target.grad.item() < -0.4
        )  # the gradient does not vanish where it is needed most


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_targets_of_the_batch_are_each_other_s_negatives(name: str) -> None:
    torch.manual_seed(0)
    sessions = torch.randn(4, 3)
    table = torch.randn(9, 3)
    targets = torch.tensor(
        [2, 7, 2, 5]
    )  # two want the same item: it is no negative of either
    loss = choose_loss(Settings(loss=name, negatives=0, score_l2=0.5), 9, CLICKS)
    scores = sessions @ table.T
    expected = [
        slowly(
            name,
            float(row[target - 1]),
            [float(row[other - 1]) for other in targets if other != target],
        )
        for row, target in zip(scores, targets, strict=True)
    ]
    assert loss(sessions, table, targets).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_many_uniform_draws_are_all_items(name: str) -> None:
    """Drawn alike, the negatives' average and their softmax go towards those over all items but the
    target."""
    torch.manual_seed(1)
    sessions = torch.randn(2, 3)
    table = torch.randn(6, 3)
    targets = torch.tensor([4, 1])
    settings = Settings(loss=name, negatives=200_000, in_batch=False, score_l2=0.5)
    loss = choose_loss(settings, 6, CLICKS)
    for row, target, value in zip(
        sessions @ table.T, targets, loss(sessions, table, targets), strict=True
    ):
        others = [float(row[item]) for item in range(6) if item != target - 1]
        assert float(value) == pytest.approx(
            slowly(name, float(row[target - 1]), others), rel=0.02
        )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_items_are_drawn_by_popularity_to_a_power(alpha: float) -> None:
    torch.manual_seed(2)
    drawn = drawing(7, CLICKS, 100_000, alpha)()  # item 7 was never clicked
    shares = torch.bincount(drawn, minlength=8)[1:] / len(drawn)
    weights = torch.tensor([2.0**number for number in range(1, 7)] + [0.0]) ** alpha
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
    value = choose_loss(Settings(loss=name).check(), 6, CLICKS)(
        torch.randn(2, 3), torch.randn(6, 3), torch.tensor([1, 6])
    )
    assert value.shape == (2,)
    assert value.isfinite().all()


@pytest.mark.parametrize(
    "wrong",
    [{"negatives": -1}, {"negatives": 0, "in_batch": False}, {"sample_alpha": -0.5}],
)
def test_settings_that_leave_nothing_to_compare_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least"):
        Settings(loss="bpr", **wrong).check()
