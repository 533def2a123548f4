"""Metrics by length of the session, position of the first repeat, popularity of the target, day."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.evaluation.metrics import rank_metrics
from posrec.evaluation.significance import session_of_samples

# The lowest value of each group; a group ends before the next begins.
LENGTHS = (1, 2, 3, 4, 6, 11, 21)  # clicks before the target
POPULARITY = (0, 10, 30, 100, 300, 1000, 3000)  # training clicks of the target
FIRST_REPEATS = (2, 3, 4, 6, 11)  # positions


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


def days_of_samples(data: PreparedDataset) -> dict[str, Tensor]:
    """Which test samples [N] are of sessions that began on each day (UTC); no days if the log has
    no times."""
    if data.trained_until is None:
        return {}
    day = data.test.days[session_of_samples(data.test).numpy()]
    return {str(date): torch.from_numpy(day == date) for date in np.unique(day)}


def groups_of(values: Tensor, lowest: tuple[int, ...]) -> dict[str, Tensor]:
    groups = {}
    for low, next_low in pairwise(lowest):
        high = next_low - 1
        name = str(low) if low == high else f"{low}-{high}"
        groups[name] = (values >= low) & (values <= high)
    groups[f"{lowest[-1]}+"] = values >= lowest[-1]
    return groups


def first_repeats(samples: SessionDataset) -> Tensor:
    """[N] the position, from 1, of the first click that repeats an earlier one; 0 if all differ."""
    repeated = repeated_clicks(samples).nonzero()[:, 0]
    session = torch.searchsorted(samples.offsets, repeated, right=True) - 1
    position = repeated - samples.offsets[session] + 1
    never = torch.full((samples.sessions,), samples.longest + 1)
    first = never.scatter_reduce(0, session, position, "amin")
    every = torch.arange(len(samples))
    first = first[samples.locate(every)[0]]
    return torch.where(first <= samples.clicks_before(every), first, 0)


def repeated_clicks(samples: SessionDataset) -> Tensor:
    """[clicks] whether the item of a click was clicked before in the session."""
    items = samples.items[: samples.clicks].long()
    numbers = torch.arange(samples.sessions)
    session = torch.repeat_interleave(numbers, samples.lengths)  # of each click
    # Clicks on the same item of a session are neighbours in the order of these keys.
    keys, order = (session * (items.max() + 1) + items).sort(stable=True)
    is_repeat = torch.zeros_like(items, dtype=torch.bool)
    is_repeat[order[1:][keys[1:] == keys[:-1]]] = True
    return is_repeat


def metrics_by_group(
    ranks: Tensor, groups: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    """The number of samples, R@20 and M@20 of each group that has any."""
    by_group = {}
    for name, chosen in groups.items():
        if samples := int(chosen.sum()):
            metrics = rank_metrics(ranks[chosen])
            shown = {metric: metrics[metric] for metric in ("recall@20", "mrr@20")}
            by_group[name] = {"samples": samples, **shown}
    return by_group
