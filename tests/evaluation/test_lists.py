"""Metrics of lists beyond accuracy: values worked out by hand, and slow restatements."""

import itertools
import json
import math
from pathlib import Path
from statistics import fmean

import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.evaluation.lists import (
    group_diversity,
    list_metrics,
    novelty,
    revenue,
    serendipity,
    vector_diversity,
)
from tests.helpers import command

TOP = torch.tensor([[1, 2, 3], [4, 1, 2], [5, 3, 4]])
CLICKS = torch.tensor([0, 8, 4, 2, 1, 1])  # the three most clicked: 1, 2, 3
TARGETS = torch.tensor([2, 4, 9])  # 9 was never in training


def test_novelty_by_hand() -> None:
    bits = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 4.0}
    mean = sum(bits[item] for item in TOP.flatten().tolist()) / 9
    assert float(novelty(TOP, CLICKS)) == pytest.approx(mean)


def test_serendipity_counts_hits_that_popularity_would_miss() -> None:
    # 2 is popular, 4 is not, 9 is a miss.
    assert float(serendipity(TOP, TARGETS, CLICKS)) == pytest.approx(1 / 3)


def test_revenue_is_the_price_of_hits() -> None:
    prices = torch.tensor([0.0, 10, 20, 30, math.nan, 50], dtype=torch.float64)
    assert float(revenue(TOP, torch.tensor([1, 2, 5]), prices)) == pytest.approx(80 / 3)
    # 4 has no price.
    assert float(revenue(TOP, TARGETS, prices)) == pytest.approx(20 / 3)


def test_diversity_against_loops_over_pairs() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(5, 4)
    groups = torch.tensor([-1, 0, 0, 1, 1, 2])
    cosines = []
    differences = []
    for row in TOP.tolist():
        for a, b in itertools.combinations(row, 2):
            cosines.append(torch.cosine_similarity(vectors[a - 1], vectors[b - 1], 0))
            differences.append(groups[a] != groups[b])
    expected = 1 - fmean(map(float, cosines))
    assert float(vector_diversity(TOP, vectors)) == pytest.approx(expected, abs=1e-5)
    assert float(group_diversity(TOP, groups)) == pytest.approx(fmean(differences))


def test_only_what_the_columns_allow() -> None:
    without_columns = list_metrics(TOP, TARGETS, CLICKS, None, {})
    assert without_columns.keys() == {"novelty@20", "serendipity@20"}
    categories = ["a", "a", None, None, "b", "more items than the model knows"]
    columns = {"category": categories, "price": ["1", "2", None, "4.5", "5"]}
    metrics = list_metrics(TOP, TARGETS, CLICKS, torch.eye(5), columns)
    assert metrics["diversity@20"] == pytest.approx(1)
    assert metrics["category_diversity@20"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert metrics["revenue@20"] == pytest.approx((2 + 4.5) / 3)
    no_numbers = {"price": ["cheap"] * 5}
    assert "revenue@20" not in list_metrics(TOP, TARGETS, CLICKS, None, no_numbers)


def test_the_command_measures_lists(trained: Path, small: PreparedDataset) -> None:
    figures = json.loads(command("evaluate", trained, small.path, "--json").out)
    assert 0 < figures["diversity@20"] < 2
    assert 0 <= figures["serendipity@20"] <= figures["recall@20"]
    assert figures["novelty@20"] > 0
    assert "Of the lists: novelty@20 " in command("evaluate", trained, small.path).out
