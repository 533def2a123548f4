import torch

from posrec.data.dataset import SessionDataset
from posrec.evaluation.breakdown import (
    first_repeats,
    groups_of_samples,
    metrics_by_group,
)


def sessions(*given: list[int]) -> SessionDataset:
    items = torch.tensor(
        [item for session in given for item in session], dtype=torch.int32
    )
    return SessionDataset(
        items,
        torch.tensor([0, *map(len, given)]).cumsum(0),
        torch.zeros(len(given)).long(),
    )


def test_first_repeats_by_hand() -> None:
    """Samples of a b a c a: (a) (a b) (a b a) (a b a c); of d d e: (d) (d d)."""
    assert first_repeats(sessions([1, 2, 1, 3, 1], [4, 4, 5])).tolist() == [
        0,
        0,
        3,
        3,
        0,
        2,
    ]


def test_groups_cover_every_sample_once() -> None:
    samples = sessions([*range(1, 31), 1, 2], [1, 1, 2, 3])
    ranks = torch.arange(1, len(samples) + 1)
    found = {
        kind: metrics_by_group(ranks, groups)
        for kind, groups in groups_of_samples(samples, samples).items()
    }
    assert [
        sum(int(group["samples"]) for group in groups.values())
        for groups in found.values()
    ] == [34] * 3
    assert found["lengths"]["1"] == {"samples": 2, "recall@20": 0.5, "mrr@20": 0.5}
    assert found["lengths"]["21+"]["recall@20"] == 0
    assert {name: group["samples"] for name, group in found["repeats"].items()} == {
        "none": 31,
        "2": 2,
        "11+": 1,
    }


def test_by_popularity_of_the_target_by_hand() -> None:
    """Item 1 has 12 training clicks, item 2 has 3; the targets of 1 2 1 are 2 (rank 4) and 1 (rank
    21)."""
    groups = groups_of_samples(sessions([1, 2, 1]), sessions([1] * 12 + [2] * 3))
    assert metrics_by_group(torch.tensor([4, 21]), groups["popularity"]) == {
        "0-9": {"samples": 1, "recall@20": 1.0, "mrr@20": 0.25},
        "10-29": {"samples": 1, "recall@20": 0.0, "mrr@20": 0.0},
    }
