"""Metrics by length of the session, position of the first repeat and popularity of the target."""

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset
from posrec.evaluation.metrics import rank_metrics

Bounds = tuple[tuple[int, int | None], ...]
LENGTHS: Bounds = (
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 5),
    (6, 10),
    (11, 20),
    (21, None),
)  # clicks before the target
POPULARITY: Bounds = (
    (0, 9),
    (10, 29),
    (30, 99),
    (100, 299),
    (300, 999),
    (1000, 2999),
    (3000, None),
)  # training clicks
FIRST_REPEATS: Bounds = ((2, 2), (3, 3), (4, 5), (6, 10), (11, None))  # positions


def groups_of_samples(
    samples: SessionDataset, train: SessionDataset
) -> dict[str, dict[str, Tensor]]:
    """Which samples [N] are in each group: by clicks before the target (`lengths`), by the position
    of the first repeated item (`repeats`), by training clicks of the target (`popularity`)."""
    every = torch.arange(len(samples))
    _, target = samples.locate(every)
    targets = samples.items[target].long()
    clicks = torch.bincount(train.items.long(), minlength=int(samples.items.max()) + 1)[
        targets
    ]
    repeats = first_repeats(samples)
    return {
        "lengths": groups_of(samples.clicks_before(every), LENGTHS),
        "repeats": {"none": repeats == 0, **groups_of(repeats, FIRST_REPEATS)},
        "popularity": groups_of(clicks, POPULARITY),
    }


def groups_of(values: Tensor, bounds: Bounds) -> dict[str, Tensor]:
    groups = {}
    for low, high in bounds:
        name = (
            f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
        )
        groups[name] = (values >= low) & (
            values <= (values.max() if high is None else high)
        )
    return groups


def first_repeats(samples: SessionDataset) -> Tensor:
    """[N] the position, from 1, of the first click that repeats an earlier one; 0 if all differ."""
    items = samples.items[: samples.clicks].long()
    session = torch.repeat_interleave(
        torch.arange(samples.sessions), samples.lengths
    )  # of each click
    ordered, order = (session * (items.max() + 1) + items).sort(stable=True)
    again = order[1:][
        ordered[1:] == ordered[:-1]
    ]  # clicks on an item that its session has clicked before
    position = again - samples.offsets[session[again]] + 1
    never = torch.full((samples.sessions,), samples.longest + 1)
    first = never.scatter_reduce(0, session[again], position, "amin")
    every = torch.arange(len(samples))
    of_sample = first[samples.locate(every)[0]]
    return torch.where(of_sample <= samples.clicks_before(every), of_sample, 0)


def metrics_by_group(
    ranks: Tensor, groups: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    """The number of samples, R@20 and M@20 of each group that has any."""
    metrics = {
        name: rank_metrics(ranks[chosen])
        for name, chosen in groups.items()
        if chosen.any()
    }
    return {
        name: {
            "samples": int(groups[name].sum()),
            "recall@20": of_group["recall@20"],
            "mrr@20": of_group["mrr@20"],
        }
        for name, of_group in metrics.items()
    }
