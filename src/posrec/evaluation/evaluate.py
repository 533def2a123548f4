"""Full ranking of every test sample, in bounded memory; `metrics.ranks_of` computes the ranks."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset, collate
from posrec.evaluation.metrics import CUTOFFS, coverage, mean_popularity, rank_metrics, ranks_of
from posrec.models.base import Model
from posrec.progress import Progress, SilentProgress

SCORES_AT_ONCE = 1 << 25  # floats; 128 MB at a time, whatever the catalogue's size
MOST_ROWS = 2048
PAIRS = 8  # numbers that a model may store for each pair of clicks of a session: edges, distances, attention


@dataclass(frozen=True)
class Evaluation:
    """The metrics, and for every sample the rank of its target and the length of its session.

    Without samples, as for a dataset that has no test part, there are no metrics.
    """

    metrics: dict[str, float]
    ranks: Tensor  # [N]
    lengths: Tensor  # [N] clicks before the target
    top: Tensor | None = None  # [N, 20] the best items, or all where there are fewer
    of_lists: dict[str, float] = field(default_factory=dict)  # metrics beyond accuracy; see lists.py

    def as_json(self) -> dict[str, Any]:
        return {**self.metrics, **self.of_lists, "samples": len(self.ranks)}


@torch.inference_mode()
def evaluate(
    model: Model,
    samples: SessionDataset,
    items: int,
    max_length: int,
    popularity: Tensor,
    progress: Progress | None = None,
) -> Evaluation:
    """Rank all `items` for every sample. `popularity [items + 1]` counts training clicks."""
    progress = progress or SilentProgress()
    device = samples.items.device
    numbers_a_row = max(items, PAIRS * min(max_length, samples.longest) ** 2)
    rows = max(1, min(MOST_ROWS, SCORES_AT_ONCE // numbers_a_row))
    ranks = torch.empty(len(samples), dtype=torch.int64, device=device)
    top = torch.empty(len(samples), min(max(CUTOFFS), items), dtype=torch.int64, device=device)
    for start in range(0, len(samples), rows):
        ids = torch.arange(start, min(start + rows, len(samples)), device=device)
        batch = collate(samples, ids, max_length)
        if device.type == "cpu":
            batch = batch.trimmed()
        scores = model.scores(batch)
        assert batch.targets is not None
        ranks[ids] = ranks_of(scores, batch.targets)
        top[ids] = scores.topk(top.shape[1]).indices + 1
        progress.update("Evaluating", start + rows, len(samples))
    metrics = rank_metrics(ranks)
    metrics[f"coverage@{max(CUTOFFS)}"] = float(coverage(top, items))
    metrics[f"popularity@{max(CUTOFFS)}"] = float(mean_popularity(top, popularity.to(device)))
    all_samples = torch.arange(len(samples), device=device)
    lengths = samples.clicks_before(all_samples)  # all clicks, even where the model reads only the latest
    return Evaluation(metrics, ranks.cpu(), lengths.cpu(), top.cpu())
