"""Student's t against printed tables and simulation; Welch's errors by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.evaluation.student import margin_of, two_sided_p, welch

# 97.5 % quantiles from the printed tables.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980, math.inf: 1.960}


@pytest.mark.parametrize(("freedom", "quantile"), QUANTILES.items())
def test_printed_quantiles(freedom: float, quantile: float) -> None:
    assert margin_of(freedom) == pytest.approx(quantile, abs=6e-4)
    assert two_sided_p(-quantile, freedom) == pytest.approx(0.05, abs=2e-4)


def test_one_degree_is_cauchys() -> None:
    for t in (0.0, 0.3, 1.0, 50.0):
        assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-6)


@given(st.floats(0, 30), st.floats(1, 200), st.floats(1.01, 3))
def test_farther_out_and_with_more_freedom_is_rarer(t: float, freedom: float, factor: float) -> None:
    p = two_sided_p(t, freedom)
    assert 0 <= p <= 1 + 1e-9
    assert two_sided_p(t * factor, freedom) <= p
    if t > 1.0:
        assert two_sided_p(t, freedom * factor) <= p + 1e-9


def test_between_the_normal_and_the_last_integral_there_is_no_step() -> None:
    assert two_sided_p(2.5, 9_999) == pytest.approx(two_sided_p(2.5, 10_001), rel=1e-3)


def test_welch_by_hand() -> None:
    """Equal errors of 4 degrees each have 8 together; one alone keeps its own; what has no error does not count."""
    assert welch([(3.0, 4), (3.0, 4)]) == pytest.approx((math.sqrt(18), 8))
    assert welch([(2.0, 4), (0.0, math.inf)]) == pytest.approx((2.0, 4))
    assert welch([(3.0, 10), (4.0, 5)]) == pytest.approx((5.0, 625 / (81 / 10 + 256 / 5)))
    assert welch([(0.0, math.inf), (0.0, 3)]) == (0.0, math.inf)


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Means of 3 and of 5 draws with deviations far apart: 5 % of equal pairs look different."""
    random = torch.Generator().manual_seed(0)
    first = torch.randn(4000, 3, generator=random).double()
    second = 4 * torch.randn(4000, 5, generator=random).double()
    alarms = 0
    for a, b in zip(first, second, strict=True):
        error, freedom = welch([(float(a.std()) / math.sqrt(3), 2), (float(b.std()) / math.sqrt(5), 4)])
        alarms += two_sided_p(float(a.mean() - b.mean()) / error, freedom) < 0.05
    assert 140 < alarms < 260
