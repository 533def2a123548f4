"""Ranks and metrics: by hand, by property, and against plain definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import ROOT, module_at

from posrec.evaluation.metrics import coverage, mean_popularity, mrr, ndcg, rank_metrics, ranks_of, recall


def test_by_hand() -> None:
    ranks = torch.tensor([1, 2, 5, 6, 11, 21])
    assert recall(ranks, 5) == pytest.approx(3 / 6)
    assert recall(ranks, 20) == pytest.approx(5 / 6)
    assert mrr(ranks, 5) == pytest.approx((1 + 1 / 2 + 1 / 5) / 6)
    assert ndcg(ranks, 5) == pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(6)) / 6)
    assert set(rank_metrics(ranks)) == {f"{name}@{k}" for name in ("recall", "mrr", "ndcg") for k in (5, 10, 20)}


def test_ranks_by_hand_with_ties_against_the_target() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.9, 0.3], [0.0, 0.0, 0.0, 0.0], [4.0, 3.0, 2.0, 1.0]])
    assert ranks_of(scores, torch.tensor([2, 1, 4])).tolist() == [2, 4, 4]


def test_targets_that_cannot_be_found_are_misses_also_among_few_items() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, math.nan, 3.0], [1.0, math.nan, 3.0]])
    assert ranks_of(scores, torch.tensor([4, 0, 2, 3])).tolist() == [21, 21, 21, 2]
    assert ranks_of(torch.zeros(1, 30), torch.tensor([31])).tolist() == [31]


def test_the_peers_are_ranked_in_the_same_way() -> None:
    torch.manual_seed(0)
    peers = module_at(ROOT / "benchmarks" / "peers" / "exchange.py")
    scores = torch.randint(5, (300, 30)).float()
    scores[torch.rand(300, 30) < 0.1] = math.nan
    scores[torch.rand(300, 30) < 0.1] = -math.inf
    targets = torch.randint(33, (300,))
    assert peers.ranks_of(scores.numpy(), targets.numpy()).tolist() == ranks_of(scores, targets).tolist()


scores = st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1, max_size=6)


@given(scores, st.data())
def test_rank_is_the_worst_place_among_equals(rows: list[list[int]], data: st.DataObject) -> None:
    targets = [data.draw(st.integers(1, 4)) for _ in rows]
    expected = []
    for row, target in zip(rows, targets, strict=True):
        order = sorted(range(4), key=lambda item: (-row[item], item == target - 1))
        expected.append(order.index(target - 1) + 1)
    assert ranks_of(torch.tensor(rows, dtype=torch.float32), torch.tensor(targets)).tolist() == expected


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 30))
def test_metrics_against_their_definitions(ranks: list[int], k: int) -> None:
    hits = [rank for rank in ranks if rank <= k]
    tensor = torch.tensor(ranks)
    assert recall(tensor, k) == pytest.approx(len(hits) / len(ranks))
    assert mrr(tensor, k) == pytest.approx(sum(1 / rank for rank in hits) / len(ranks))
    assert ndcg(tensor, k) == pytest.approx(sum(1 / math.log2(rank + 1) for rank in hits) / len(ranks))
    assert mrr(tensor, k) <= ndcg(tensor, k) <= recall(tensor, k)


def test_coverage_and_popularity_by_hand() -> None:
    top = torch.tensor([[1, 2], [2, 3]])
    assert coverage(top, items=5) == pytest.approx(3 / 5)
    assert mean_popularity(top, torch.tensor([0, 10, 5, 0, 1, 1])) == pytest.approx((1 + 0.5 + 0.5 + 0) / 4)
