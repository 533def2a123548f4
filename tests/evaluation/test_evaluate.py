"""Full ranking over a dataset: against a plain loop, in any memory, on models that read little."""

from typing import Any

import pytest
import torch

from posrec.data.dataset import SessionDataset
from posrec.evaluation import evaluate as module
from posrec.evaluation.evaluate import evaluate, rows_at_once
from posrec.nn.batch import SessionBatch

ITEMS = 9


def sessions() -> SessionDataset:
    """Item 12 was never in training."""
    items = torch.tensor([1, 2, 3, 4, 9, 9, 5, 12, 1, 2], dtype=torch.int32)
    offsets = torch.tensor([0, 4, 6, 10])
    return SessionDataset(items, offsets, torch.zeros(3, dtype=torch.long))


class NextNumber:
    """Scores an item the higher the nearer it is to one more than the last click."""

    stride = 1

    def scores(self, batch: SessionBatch) -> torch.Tensor:
        last = batch.items.gather(1, (batch.lengths - 1)[:, None])
        return -(torch.arange(1, ITEMS + 1) - last - 1).abs().float()


def test_sessions_at_a_time() -> None:
    """32 MB of scores on a CPU, but 32 sessions if they fit into 128 MB, and never none."""
    sizes = {100: 2048, 40_000: 200, 500_000: 32, 2_000_000: 16, 100_000_000: 1}
    for items, rows in sizes.items():
        assert rows_at_once(items, torch.device("cpu")) == rows


@pytest.mark.parametrize("at_once", [1, 2, 1000])
@pytest.mark.parametrize("max_length", [1, 2, 50])
def test_ranks_and_metrics(
    monkeypatch: pytest.MonkeyPatch, at_once: int, max_length: int
) -> None:
    monkeypatch.setattr(module, "rows_at_once", lambda *_: at_once)
    clicks = torch.tensor([0, 4, 2, 1, 1, 1, 0, 0, 0, 2])
    model: Any = NextNumber()
    outcome = evaluate(model, sessions(), ITEMS, max_length, clicks)
    # 1>2 2>3 3>4: first. 9>9: of 10, which is no item, 9 is nearest. 5>12: not an item, so past
    # every cutoff. 12>1: eight others are nearer. 1>2: first.
    assert outcome.ranks.tolist() == [1, 1, 1, 1, 21, 9, 1]
    assert outcome.lengths.tolist() == [1, 2, 3, 1, 1, 2, 3]
    assert outcome.metrics["recall@5"] == pytest.approx(5 / 7)
    assert outcome.metrics["coverage@20"] == 1.0  # fewer items than 20
    mean_share = float(clicks[1:].double().mean() / 4)
    assert outcome.metrics["popularity@20"] == pytest.approx(mean_share)
