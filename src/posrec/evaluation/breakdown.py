"""Metrics by the length of the session, the position of its first repeated item and the popularity of the target."""

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset, collate
from posrec.evaluation.metrics import rank_metrics

LENGTHS = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, None))
PAIRS_AT_A_TIME = 1 << 22  # of clicks that are compared at a time
POPULARITY = ((0, 9), (10, 29), (30, 99), (100, 299), (300, 999), (1000, 2999), (3000, None))  # training clicks
FIRST_REPEATS = ((2, 2), (3, 3), (4, 5), (6, 10), (11, None))


def by_length(ranks: Tensor, lengths: Tensor) -> dict[str, dict[str, float]]:
    """R@20 and M@20 by the number of clicks before the target, in groups."""
    return metrics_by_group(ranks, {range_name(*bounds): within(lengths, *bounds) for bounds in LENGTHS})


def by_first_repeat(ranks: Tensor, positions: Tensor) -> dict[str, dict[str, float]]:
    """R@20 and M@20 by the position, from 1, of the first click on an item clicked before; 0: no repeat."""
    groups = {"none": positions == 0}
    groups |= {range_name(*bounds): within(positions, *bounds) for bounds in FIRST_REPEATS}
    return metrics_by_group(ranks, groups)


def by_popularity(ranks: Tensor, samples: SessionDataset, train: SessionDataset) -> dict[str, dict[str, float]]:
    """R@20 and M@20 by how often the target was clicked in training."""
    _, target = samples.locate(torch.arange(len(samples)))
    targets = samples.items[target].long()
    clicks = torch.bincount(train.items.long(), minlength=int(samples.items.max()) + 1)[targets]
    return metrics_by_group(ranks, {range_name(*bounds): within(clicks, *bounds) for bounds in POPULARITY})


def first_repeats(samples: SessionDataset) -> Tensor:
    """[N] the position, from 1, of the first click that repeats an earlier one; 0 where all clicks differ."""
    found, rows = [], max(1, min(4096, PAIRS_AT_A_TIME // max(1, samples.longest) ** 2))
    for start in range(0, len(samples), rows):
        batch = collate(samples, torch.arange(start, min(start + rows, len(samples))), samples.longest)
        graph = batch.build_graph(with_distances=False)
        position = torch.arange(1, batch.items.shape[1] + 1)
        again = batch.mask & (graph.alias < position - 1)
        found.append(torch.where(again.any(1), again.int().argmax(1) + 1, 0))
    return torch.cat(found)


def metrics_by_group(ranks: Tensor, groups: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    metrics = {name: rank_metrics(ranks[chosen]) for name, chosen in groups.items() if chosen.any()}
    return {
        name: {"samples": int(groups[name].sum()), "recall@20": of_group["recall@20"], "mrr@20": of_group["mrr@20"]}
        for name, of_group in metrics.items()
    }


def within(values: Tensor, low: int, high: int | None) -> Tensor:
    inside = values >= low
    return inside if high is None else inside & (values <= high)


def range_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
