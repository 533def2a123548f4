"""Paired comparisons by hand and by simulation, Welch's errors, Holm's correction."""

import math

import pytest
import torch

from posrec.evaluation.significance import (
    LEVEL,
    compare_paired,
    holm,
    margin,
    two_sided_p,
    welch,
)


def test_p_by_hand_without_clusters() -> None:
    """Differences 1, 1, 1, 2: mean 1.25, sample deviation 0.5, error 0.25, z = 5."""
    gains = torch.tensor([1.0, 1.0, 1.0, 2.0])
    comparison = compare_paired(gains, torch.zeros(4), torch.arange(4))
    assert comparison.difference == pytest.approx(1.25)
    assert comparison.error == pytest.approx(0.25)
    assert comparison.p == pytest.approx(math.erfc(5 / math.sqrt(2)))


def test_samples_of_one_session_count_as_one_observation() -> None:
    """The same numbers, ten times in each session, must not look ten times surer."""
    torch.manual_seed(1)
    difference = torch.randn(50) + 0.3
    alone = compare_paired(difference, torch.zeros(50), torch.arange(50))
    sessions = torch.arange(50).repeat_interleave(10)
    repeated = difference.repeat_interleave(10)
    tenfold = compare_paired(repeated, torch.zeros(500), sessions)
    assert tenfold.p == pytest.approx(alone.p)
    assert tenfold.high - tenfold.low == pytest.approx(alone.high - alone.low, rel=0.01)


def test_false_alarms_are_as_rare_as_promised() -> None:
    torch.manual_seed(2)
    alarms = sum(
        compare_paired(values, torch.zeros(200), torch.arange(200)).p < LEVEL
        for values in torch.randn(400, 200)
    )
    assert 6 <= alarms <= 38  # 20 expected of 400


def test_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="same ones"):
        compare_paired(torch.zeros(3), torch.zeros(4), torch.zeros(3))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_without_an_error_any_difference_is_certain() -> None:
    assert two_sided_p(0.0, 0.0, 3) == 1
    assert two_sided_p(0.1, 0.0, 3) == 0
    assert margin(0.0, 3) == 0


def test_welch_of_errors_of_zero() -> None:
    """A single error keeps its own degrees; one of 0 does not count."""
    assert welch([(2.0, 4), (0.0, math.inf)]) == pytest.approx((2.0, 4))
    assert welch([(0.0, math.inf), (0.0, 3)]) == (0.0, math.inf)


def test_welch_and_t_agree_with_scipys_test_of_two_samples() -> None:
    from scipy.stats import ttest_ind

    random = torch.Generator().manual_seed(0)
    first = torch.randn(3, generator=random).double()
    second = 4 * torch.randn(5, generator=random).double()
    errors = [
        (float(sample.std()) / math.sqrt(len(sample)), len(sample) - 1)
        for sample in (first, second)
    ]
    p = two_sided_p(float(first.mean() - second.mean()), *welch(errors))
    test = ttest_ind(first.numpy(), second.numpy(), equal_var=False)
    assert p == pytest.approx(test.pvalue, rel=1e-9)
