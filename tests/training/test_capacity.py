"""Batches that have too few samples are filled up with short ones, which need little room."""

from pathlib import Path

import torch
from tests.helpers import chain_shop

from posrec.data.dataset import SessionDataset
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner
from posrec.training.settings import Settings


def test_batches_are_filled_up_and_warmed_up_with_the_shortest_sample() -> None:
    """With targets of one's own, the first sample may be the longest. A batch of it alone would not fit."""
    items = torch.arange(1, 26, dtype=torch.int32)
    samples = SessionDataset(items, torch.tensor([0, 21, 25]), torch.arange(2), targets=torch.tensor([20, 22, 24]))
    settings, cpu = Settings(batch_size=2), torch.device("cpu")
    model = PosRec(25, PosRecConfig(d=8))
    runner = EpochRunner(model, make_optimizer(model, settings, cpu), samples, settings, cpu, 25, 20)
    assert samples.clicks_before(torch.arange(3)).tolist() == [20, 1, 3]
    batches = runner.shuffle(0).batches
    assert batches.flatten()[3:].tolist() == [-1]
    (batch, weights) = runner.batches.read(batches[1:], 20, None)[0]
    assert batch.lengths[1] == 1  # of the filler
    assert weights[1] == 0


def test_the_last_batch_is_filled_up_with_samples_of_one_click(tmp_path: Path) -> None:
    """A long session repeated a hundred times would set the capacity of every step."""
    data, settings, cpu = chain_shop(tmp_path, seed=1), Settings(batch_size=128), torch.device("cpu")
    model = PosRec(data.train_items, PosRecConfig(d=8))
    runner = EpochRunner(model, make_optimizer(model, settings, cpu), data.train, settings, cpu, data.train_items, 20)
    order, count = runner.shuffle(0), len(data.train)
    ids = order.batches.flatten()
    assert sorted(ids[:count].tolist()) == list(range(count))
    assert len(ids) == 128 * order.steps > count == order.samples
    (batch, weights) = runner.batches.read(order.batches[-1:], 20, None)[0]
    fillers = len(ids) - count
    assert weights.tolist() == [1.0] * (128 - fillers) + [0.0] * fillers
    assert set(batch.lengths[-fillers:].tolist()) == {1}
