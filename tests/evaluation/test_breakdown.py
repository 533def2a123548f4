import pytest
import torch

from posrec.data.dataset import SessionDataset
from posrec.evaluation import breakdown
from posrec.evaluation.breakdown import by_first_repeat, by_length, by_popularity, first_repeats


def test_first_repeats_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a b a c a: (a) (a b) (a b a) (a b a c); of d d e: (d) (d d)."""
    items = torch.tensor([1, 2, 1, 3, 1, 4, 4, 5], dtype=torch.int32)
    sessions = SessionDataset(items, torch.tensor([0, 5, 8]), torch.zeros(2, dtype=torch.long))
    assert first_repeats(sessions).tolist() == [0, 0, 3, 3, 0, 2]
    monkeypatch.setattr(breakdown, "PAIRS_AT_A_TIME", 1)  # one sample at a time, as for very long sessions
    assert first_repeats(sessions).tolist() == [0, 0, 3, 3, 0, 2]


def test_groups_cover_every_sample_once() -> None:
    ranks, lengths = torch.arange(1, 41), torch.arange(1, 41)
    groups = by_length(ranks, lengths)
    assert sum(int(group["samples"]) for group in groups.values()) == 40
    assert groups["1"] == {"samples": 1, "recall@20": 1.0, "mrr@20": 1.0}
    assert groups["21+"]["recall@20"] == 0
    repeats = by_first_repeat(ranks, torch.arange(40) % 4 * (torch.arange(40) % 4 > 1))
    assert sum(int(group["samples"]) for group in repeats.values()) == 40
    assert list(repeats) == ["none", "2", "3"]


def test_by_popularity_of_the_target_by_hand() -> None:
    """Item 1 has 12 training clicks, item 2 has 3; the targets of 1 2 1 are 2 (rank 4) and 1 (rank 21)."""
    train = SessionDataset(torch.tensor([1] * 12 + [2] * 3), torch.tensor([0, 15]), torch.zeros(1, dtype=torch.long))
    test = SessionDataset(torch.tensor([1, 2, 1]), torch.tensor([0, 3]), torch.zeros(1, dtype=torch.long))
    assert by_popularity(torch.tensor([4, 21]), test, train) == {
        "0-9": {"samples": 1, "recall@20": 1.0, "mrr@20": 0.25},
        "10-29": {"samples": 1, "recall@20": 0.0, "mrr@20": 0.0},
    }
