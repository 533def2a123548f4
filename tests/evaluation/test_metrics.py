"""Ranks, metrics and the best items: by hand, by property, and against torchmetrics and sorting."""

import math
from statistics import fmean

import pytest
import torch
from hypothesis import given, strategies as st
from torchmetrics.functional.retrieval import (
    retrieval_normalized_dcg,
    retrieval_recall,
    retrieval_reciprocal_rank,
)

from benchmarks.peers.libraries.exchange import ranks_of as ranks_of_peers
from posrec.evaluation.metrics import (
    CUTOFFS,
    TOP_BLOCK,
    coverage,
    mean_popularity,
    rank_metrics,
    ranks_of,
    top,
)

REFERENCES = {
    "recall": retrieval_recall,
    "mrr": retrieval_reciprocal_rank,
    "ndcg": retrieval_normalized_dcg,
}


@given(st.integers(1, 6), st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_every_metric_agrees_with_torchmetrics(
    samples: int, items: int, seed: int
) -> None:
    """Scores are all different: what happens to ties is this package's own rule."""
    random = torch.Generator().manual_seed(seed)
    order = torch.rand((samples, items), generator=random).argsort(1)
    targets = torch.randint(1, items + 1, (samples,), generator=random)
    figures = rank_metrics(ranks_of(order - items / 3, targets))
    # torchmetrics takes scores for probabilities: it counts an item of score 0 or less as not
    # recommended at all.
    probabilities = (order + 1) / items
    relevant = torch.arange(1, items + 1) == targets[:, None]
    for k in CUTOFFS:
        for name, reference in REFERENCES.items():
            expected = [
                float(reference(row, target, top_k=k))
                for row, target in zip(probabilities, relevant, strict=True)
            ]
            mean = pytest.approx(fmean(expected), abs=1e-6)
            assert figures[f"{name}@{k}"] == mean, f"{name}@{k}"


def test_ranks_by_hand_with_ties_against_the_target() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.9, 0.3], [0, 0, 0, 0], [4, 3, 2, 1]])
    assert ranks_of(scores, torch.tensor([2, 1, 4])).tolist() == [2, 4, 4]


def test_targets_that_cannot_be_found_are_misses_also_among_few_items() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]] * 2 + [[1.0, math.nan, 3.0]] * 2)
    assert ranks_of(scores, torch.tensor([4, 0, 2, 3])).tolist() == [21, 21, 21, 2]
    assert ranks_of(torch.zeros(1, 30), torch.tensor([31])).tolist() == [31]


def test_the_peers_are_ranked_in_the_same_way() -> None:
    torch.manual_seed(0)
    scores = torch.randint(5, (300, 30)).float()
    scores[torch.rand(300, 30) < 0.1] = math.nan
    scores[torch.rand(300, 30) < 0.1] = -math.inf
    targets = torch.randint(33, (300,))
    ranks = ranks_of_peers(scores.numpy(), targets.numpy())
    assert ranks.tolist() == ranks_of(scores, targets).tolist()


def test_coverage_and_popularity_by_hand() -> None:
    lists = torch.tensor([[1, 2], [2, 3]])
    assert coverage(lists, items=5) == pytest.approx(3 / 5)
    clicks = torch.tensor([0, 10, 5, 0, 1, 1])
    assert mean_popularity(lists, clicks) == pytest.approx((1 + 0.5 + 0.5 + 0) / 4)


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 3 * TOP_BLOCK),
    st.integers(0, 99),
    st.booleans(),
)
def test_top_is_the_same_as_topk(
    rows: int, k: int, more: int, seed: int, ties: bool
) -> None:
    columns = 2 * k * TOP_BLOCK + more  # enough for blocks
    scores = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    if ties:
        scores = scores.round()
    values, positions = top(scores, k)
    assert torch.equal(values, scores.topk(k).values)
    assert torch.equal(scores.gather(1, positions), values)
    assert all(len(set(row)) == k for row in positions.tolist())
