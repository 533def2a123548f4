"""Metrics by length of the session, position of the first repeat and popularity of the target."""

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.evaluation.metrics import rank_metrics

Bounds = tuple[tuple[int, int | None], ...]
# Clicks before the target, training clicks of the target, positions of the first repeat.
LENGTHS: Bounds = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, None))
POPULARITY: Bounds = (
    (0, 9),
    (10, 29),
    (30, 99),
    (100, 299),
    (300, 999),
    (1000, 2999),
    (3000, None),
)
FIRST_REPEATS: Bounds = ((2, 2), (3, 3), (4, 5), (6, 10), (11, None))


def groups_of_samples(
    samples: SessionDataset, train: SessionDataset
) -> dict[str, dict[str, Tensor]]:
    """Which samples [N] are in each group: by clicks before the target (`lengths`), by the position
    of the first repeated item (`repeats`), by training clicks of the target (`popularity`)."""
    every = torch.arange(len(samples))
    _, target = samples.locate(every)
    targets = samples.items[target].long()
    items = int(samples.items.max()) + 1
    clicks = torch.bincount(train.items.long(), minlength=items)[targets]
    repeats = first_repeats(samples)
    return {
        "lengths": groups_of(samples.clicks_before(every), LENGTHS),
        "repeats": {"none": repeats == 0, **groups_of(repeats, FIRST_REPEATS)},
        "popularity": groups_of(clicks, POPULARITY),
    }


def groups_of(values: Tensor, bounds: Bounds) -> dict[str, Tensor]:
    groups = {}
    for low, high in bounds:
        if high is None:
            groups[f"{low}+"] = values >= low
        else:
            name = str(low) if low == high else f"{low}-{high}"
            groups[name] = (values >= low) & (values <= high)
    return groups


def first_repeats(samples: SessionDataset) -> Tensor:
    """[N] the position, from 1, of the first click that repeats an earlier one; 0 if all differ."""
    items = samples.items[: samples.clicks].long()
    numbers = torch.arange(samples.sessions)
    session = torch.repeat_interleave(numbers, samples.lengths)  # of each click
    # Clicks on the same item of a session are neighbours in the order of these keys.
    keys, order = (session * (items.max() + 1) + items).sort(stable=True)
    repeated = order[1:][keys[1:] == keys[:-1]]
    position = repeated - samples.offsets[session[repeated]] + 1
    never = torch.full((samples.sessions,), samples.longest + 1)
    first = never.scatter_reduce(0, session[repeated], position, "amin")
    every = torch.arange(len(samples))
    session_of_sample, _ = samples.locate(every)
    first = first[session_of_sample]
    return torch.where(first <= samples.clicks_before(every), first, 0)


def metrics_by_group(
    ranks: Tensor, groups: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    """The number of samples, R@20 and M@20 of each group that has any."""
    by_group = {}
    for name, chosen in groups.items():
        samples = int(chosen.sum())
        if samples:
            metrics = rank_metrics(ranks[chosen])
            shown = {metric: metrics[metric] for metric in ("recall@20", "mrr@20")}
            by_group[name] = {"samples": samples, **shown}
    return by_group
