"""Trends against sums over single clicks; and no sample sees its own target or a later click."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from posrec.nn.items.trends import COLUMNS, FADING, PERIODS, Trends

ITEMS = 4
WEIGHTS = (0.5, -0.25, 2.0)


def trends_of(clicks: list[int]) -> Trends:
    trends = Trends(8).requires_grad_(False)
    items = torch.tensor(clicks, dtype=torch.int32)
    trends.count(items, torch.tensor([0, len(clicks)]))
    trends.weights.copy_(torch.tensor(WEIGHTS))
    return trends


@given(
    st.lists(st.integers(1, ITEMS), min_size=1, max_size=60),
    st.integers(0, PERIODS),
    st.integers(1, ITEMS),
)
def test_a_trend_is_a_sum_over_the_clicks_before_its_period(
    clicks: list[int], period: int, item: int
) -> None:
    total = len(clicks)
    expected = 0.0
    for weight, tau in zip(WEIGHTS, FADING, strict=True):
        faded = [
            math.exp((number / total - period / PERIODS) / tau)
            for number, click in enumerate(clicks)
            if click == item and number < period * total / PERIODS
        ]
        expected += weight * math.log1p(sum(faded))
    trend = float(trends_of(clicks).by_period()[item - 1, period])
    assert trend == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_products_of_the_columns_are_the_trend() -> None:
    trends = trends_of([1, 2, 2, 3] * 20)
    nothing = torch.zeros(3, 0)
    when = torch.tensor([0.0, 0.5, 0.999], dtype=torch.double)
    in_training = trends.with_moments(nothing, when) @ trends.of_items(when).T
    assert torch.allclose(in_training, trends.by_period()[:, [0, 7, 14]].T)
    later = trends.with_moments(nothing, None) @ trends.of_items(None).T
    latest = trends.by_period()[:, COLUMNS - 1]
    assert torch.allclose(later, latest.expand(3, -1), atol=1e-5)


def test_a_sample_is_scored_without_its_target_and_what_follows() -> None:
    """Whatever the clicks from the target on are, the trends of the sample's period stay the
    same."""
    clicks = [1, 2, 3, 4, 1, 2, 2, 2, 3, 1, 4, 4, 4, 1, 2, 3, 3, 1, 4, 2, 2, 1, 3] * 3
    for target in range(0, len(clicks), 4):
        when = torch.tensor([target / len(clicks)], dtype=torch.double)
        changed = clicks[:target] + [4] * (len(clicks) - target)
        scores = [
            trends.with_moments(torch.zeros(1, 0), when) @ trends.of_items(when).T
            for trends in (trends_of(clicks), trends_of(changed))
        ]
        assert torch.equal(*scores)
