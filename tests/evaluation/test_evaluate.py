"""Full ranking over a dataset: against a plain loop, in any memory, on models that read little."""

import pytest
import torch

from posrec.data.dataset import SessionDataset
from posrec.evaluation import evaluate as module
from posrec.evaluation.evaluate import evaluate
from posrec.evaluation.metrics import rank_metrics
from posrec.nn.batch import SessionBatch

ITEMS = 9


def sessions() -> SessionDataset:
    items = torch.tensor([1, 2, 3, 4, 9, 9, 5, 12, 1, 2], dtype=torch.int32)  # 12 was never in training
    return SessionDataset(items, torch.tensor([0, 4, 6, 10]), torch.zeros(3, dtype=torch.long))


class NextNumber:
    """Scores an item the higher the nearer it is to one more than the last click."""

    def scores(self, batch: SessionBatch) -> torch.Tensor:
        last = batch.items.gather(1, (batch.lengths - 1)[:, None])
        return -(torch.arange(1, ITEMS + 1) - last - 1).abs().float()


@pytest.mark.parametrize("at_once", [1, 20, 10_000])
@pytest.mark.parametrize("max_length", [1, 2, 50])
def test_ranks_and_metrics(monkeypatch: pytest.MonkeyPatch, at_once: int, max_length: int) -> None:
    monkeypatch.setattr(module, "SCORES_AT_ONCE", at_once)
    clicks = torch.tensor([0, 4, 2, 1, 1, 1, 0, 0, 0, 2])
    outcome = evaluate(NextNumber(), sessions(), ITEMS, max_length, clicks)
    # 1>2 2>3 3>4: first. 9>9: asked for 10, 9 is nearest. 5>12: not an item, 12>1: eight others are nearer, 1>2.
    assert outcome.ranks.tolist() == [1, 1, 1, 1, 10, 9, 1]
    assert outcome.lengths.tolist() == [1, 2, 3, 1, 1, 2, 3]
    assert outcome.metrics["recall@5"] == rank_metrics(outcome.ranks)["recall@5"] == pytest.approx(5 / 7)
    assert outcome.metrics["coverage@20"] == 1.0  # fewer items than 20
    assert outcome.metrics["popularity@20"] == pytest.approx(float(clicks[1:].double().mean() / 4))
