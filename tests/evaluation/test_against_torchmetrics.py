"""Ranks and metrics against torchmetrics, which computes each from the scores themselves, one sample at a time.

Scores are all different: what happens to ties is this package's own rule, tested by hand in test_metrics.py.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.retrieval import retrieval_normalized_dcg, retrieval_recall, retrieval_reciprocal_rank

from posrec.evaluation.metrics import CUTOFFS, rank_metrics, ranks_of

REFERENCES = {"recall": retrieval_recall, "mrr": retrieval_reciprocal_rank, "ndcg": retrieval_normalized_dcg}


@given(st.integers(1, 6), st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_every_metric_agrees(samples: int, items: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(items, generator=random) for _ in range(samples)])
    targets = torch.randint(1, items + 1, (samples,), generator=random)
    found = rank_metrics(ranks_of(order - items / 3, targets))
    # torchmetrics takes scores for probabilities: it counts an item of score 0 or less as not recommended at all.
    chances, wanted = (order + 1) / items, torch.arange(1, items + 1) == targets[:, None]
    for k in CUTOFFS:
        for name, reference in REFERENCES.items():
            expected = [reference(row, truth, top_k=k) for row, truth in zip(chances, wanted, strict=True)]
            assert found[f"{name}@{k}"] == pytest.approx(float(torch.stack(expected).mean()), abs=1e-6), f"{name}@{k}"
