"""Batches that have too few samples are filled up with short ones, which need little room."""

import torch

from posrec.data.dataset import SessionDataset
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.epoch import EpochRunner
from posrec.training.optimizers import make_optimizer
from posrec.training.settings import Settings


def test_batches_are_filled_up_with_the_shortest_sample() -> None:
    """With targets of one's own, the first sample may be the longest. Repeated, it would set the
    capacity of a step."""
    items = torch.arange(1, 26, dtype=torch.int32)
    offsets = torch.tensor([0, 21, 25])
    targets = torch.tensor([20, 22, 24])
    samples = SessionDataset(items, offsets, torch.arange(2), targets=targets)
    settings = Settings(batch_size=2)
    model = PosRec(25, PosRecConfig(d=8, max_length=20))
    optimizer = make_optimizer(model, settings, torch.device("cpu"))
    runner = EpochRunner(model, optimizer, samples, settings, 25)
    assert samples.clicks_before(torch.arange(3)).tolist() == [20, 1, 3]
    batches = runner.shuffle(0).batches
    assert sorted(batches.flatten()[:3].tolist()) == [0, 1, 2]
    assert batches.flatten()[3:].tolist() == [-1]
    (batch, weights) = runner.batches.read(batches[1:], 20, None)[0]
    assert batch.lengths[1] == 1  # of the filler
    assert weights.tolist() == [1.0, 0.0]
