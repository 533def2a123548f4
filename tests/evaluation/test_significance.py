"""Paired comparison: by hand, against scipy-free simulation, and the correction for many comparisons."""

import math

import pytest
import torch

from posrec.evaluation.metrics import mrr, ndcg, recall
from posrec.evaluation.significance import compare_paired, gains, holm


@pytest.mark.parametrize(("name", "metric"), [("recall", recall), ("mrr", mrr), ("ndcg", ndcg)])
def test_gains_average_to_the_metric(name: str, metric) -> None:
    ranks = torch.tensor([1, 3, 7, 21, 20])
    assert float(gains(ranks, name, 20).mean()) == pytest.approx(float(metric(ranks, 20)))


def test_the_difference_is_the_difference_of_means() -> None:
    torch.manual_seed(0)
    first, second = torch.rand(400), torch.rand(400)
    found = compare_paired(first, second, torch.arange(400))
    assert found.difference == pytest.approx(float((first - second).double().mean()))
    assert found.low < found.difference < found.high


def test_p_by_hand_without_clusters() -> None:
    """Four sessions of one sample, differences 1, 1, 1, 2: mean 1.25, sample deviation 0.5, error 0.25, z = 5."""
    found = compare_paired(torch.tensor([1.0, 1.0, 1.0, 2.0]), torch.zeros(4), torch.arange(4), draws=0)
    assert (found.difference, found.error) == pytest.approx((1.25, 0.25))
    assert found.p == pytest.approx(math.erfc(5 / math.sqrt(2)))


def test_samples_of_one_session_count_as_one_observation() -> None:
    """The same numbers, ten times in each session, must not look ten times surer."""
    torch.manual_seed(1)
    difference = torch.randn(50) + 0.3
    alone = compare_paired(difference, torch.zeros(50), torch.arange(50))
    tenfold = compare_paired(difference.repeat_interleave(10), torch.zeros(500), torch.arange(50).repeat_interleave(10))
    assert tenfold.p == pytest.approx(alone.p)
    assert tenfold.high - tenfold.low == pytest.approx(alone.high - alone.low, rel=0.01)


def test_false_alarms_are_as_rare_as_promised() -> None:
    torch.manual_seed(2)
    alarms = sum(
        compare_paired(values, torch.zeros(200), torch.arange(200), draws=0).significant
        for values in torch.randn(400, 200)
    )
    assert 6 <= alarms <= 38  # 20 expected of 400


def test_equal_models_are_not_told_apart() -> None:
    same = torch.rand(30)
    found = compare_paired(same, same, torch.arange(30))
    assert (found.difference, found.p, found.significant) == (0.0, 1.0, False)


def test_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="same ones"):
        compare_paired(torch.zeros(3), torch.zeros(4), torch.zeros(3))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_without_draws_the_interval_is_nearly_the_bootstraps() -> None:
    torch.manual_seed(5)
    first, second = torch.rand(3000), torch.rand(3000) - 0.02
    session = torch.arange(3000) // 3
    drawn, plain = (compare_paired(first, second, session, draws=draws) for draws in (2000, 0))
    assert (plain.difference, plain.p) == (drawn.difference, drawn.p)
    assert (plain.low, plain.high) == pytest.approx((drawn.low, drawn.high), abs=0.002)
