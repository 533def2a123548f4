from itertools import chain

import torch

from posrec.data.dataset import SessionDataset
from posrec.evaluation.breakdown import (
    first_repeats,
    groups_of_samples,
    metrics_by_group,
)


def dataset(*sessions: list[int]) -> SessionDataset:
    items = torch.tensor(list(chain(*sessions)), dtype=torch.int32)
    offsets = torch.tensor([0, *map(len, sessions)]).cumsum(0)
    times = torch.zeros(len(sessions), dtype=torch.long)
    return SessionDataset(items, offsets, times)


def test_first_repeats_by_hand() -> None:
    """Samples of a b a c a: (a) (a b) (a b a) (a b a c); of d d e: (d) (d d)."""
    repeats = first_repeats(dataset([1, 2, 1, 3, 1], [4, 4, 5]))
    assert repeats.tolist() == [0, 0, 3, 3, 0, 2]


def test_groups_cover_every_sample_once() -> None:
    samples = dataset([*range(1, 31), 1, 2], [1, 1, 2, 3])
    ranks = torch.arange(1, len(samples) + 1)
    breakdowns = {}
    for kind, groups in groups_of_samples(samples, samples).items():
        metrics = metrics_by_group(ranks, groups)
        assert sum(int(group["samples"]) for group in metrics.values()) == 34
        breakdowns[kind] = metrics
    lengths = breakdowns["lengths"]
    assert lengths["1"] == {"samples": 2, "recall@20": 0.5, "mrr@20": 0.5}
    assert lengths["21+"]["recall@20"] == 0
    repeats = breakdowns["repeats"]
    counts = {name: group["samples"] for name, group in repeats.items()}
    assert counts == {"none": 31, "2": 2, "11+": 1}


def test_by_popularity_of_the_target_by_hand() -> None:
    """Item 1 has 12 training clicks and item 2 has 3. The targets of 1 2 1 are 2 and 1."""
    groups = groups_of_samples(dataset([1, 2, 1]), dataset([1] * 12 + [2] * 3))
    assert metrics_by_group(torch.tensor([4, 21]), groups["popularity"]) == {
        "0-9": {"samples": 1, "recall@20": 1.0, "mrr@20": 0.25},
        "10-29": {"samples": 1, "recall@20": 0.0, "mrr@20": 0.0},
    }
