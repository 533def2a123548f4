"""Training posrec-plus: its loss, its learning rates, the weights of its samples, and runs that
were stopped."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posrec.data.dataset import PreparedDataset, collate
from posrec.errors import InputError, RunStopped
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.testing import same
from posrec.training.epoch import EpochRunner, sample_weights
from posrec.training.losses import losses_of
from posrec.training.optimizers import make_optimizer
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss
from tests.helpers import fitted
from tests.training.runs import log_of, weights_of

QUICK: dict[str, Any] = {
    "d": 16,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 0.02,
    "max_length": 10,
}


@pytest.mark.parametrize("chunk", [None, 5])
def test_the_loss_is_the_negative_log_probability(chunk: int | None) -> None:
    torch.manual_seed(0)
    model = PosRecPlus(12, PosRecPlusConfig(d=8, max_length=9)).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    batch = SessionBatch.of([[1, 2, 1], [3], [4, 5]])
    targets = torch.tensor([2, 7, 12])  # one of the session, two not
    losses = losses_of(softmax_loss(12, chunk), model.batch_vectors(batch), targets)
    scores = model.scores(batch).gather(1, targets[:, None] - 1)[:, 0]
    assert torch.allclose(losses, -scores)


def test_ranking_losses_are_refused(small: PreparedDataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a softmax"):
        fitted(small, "posrec-plus", tmp_path / "run", {**QUICK, "loss": "bpr"})
    assert not (tmp_path / "run").exists()


def test_it_learns_and_its_learning_rate_falls(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run, evaluation = fitted(small, "posrec-plus", tmp_path / "run", QUICK)
    # Item i is mostly followed by item i + 1.
    assert evaluation.metrics["recall@5"] > 0.5
    selection = json.loads((run.path / "selection.json").read_text())
    assert selection.keys() == {"epochs", "ndcg@20"}
    rates = [
        line["learning_rate"]
        for line in log_of(run.path)
        if "learning_rate" in line and "part" not in line
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1 * rates[0] or len(rates) < 3  # it falls along the cosine


class StopAtTheEnd(SilentProgress):
    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work == "Epoch 1 of 2" and done == total - 1:
            signal.raise_signal(signal.SIGTERM)  # it is heeded after the next step


def test_a_run_stopped_after_the_last_step_of_an_epoch_is_resumed(
    small: PreparedDataset, tmp_path: Path
) -> None:
    settings = {**QUICK, "epochs": 2, "protocol": "paper"}
    uncut, _ = fitted(small, "posrec-plus", tmp_path / "uncut", settings)
    cut = tmp_path / "cut"
    with pytest.raises(RunStopped, match="stopped in epoch 1"):
        fitted(small, "posrec-plus", cut, settings, progress=StopAtTheEnd())
    fitted(small, "posrec-plus", cut, settings, resume=True)
    assert same(weights_of(cut), weights_of(uncut.path))


def runner_with(weights: torch.Tensor, data: PreparedDataset) -> EpochRunner:
    settings = Settings(batch_size=50)
    model = PosRecPlus(data.train_items, PosRecPlusConfig(d=8, max_length=10))
    model.count(data.train.items, data.train.offsets)
    optimizer = make_optimizer(model, settings, torch.device("cpu"))
    samples = data.train
    return EpochRunner(model, optimizer, samples, settings, data.train_items, weights)


def test_recent_samples_weigh_more(small: PreparedDataset) -> None:
    weights = sample_weights(small.train, 2.0)
    runner = runner_with(weights, small)
    order = runner.shuffle(0)
    assert order.samples == len(small.train)
    read = [runner.batches.read(batch[None], 10, None) for batch in order.batches]
    in_batches = torch.cat([batch_weights for ((_, batch_weights),) in read])
    assert torch.allclose(in_batches.sort().values, weights)  # each sample once
    total = runner.batches.unit_weights[order.batches]
    assert float(total.sum()) == pytest.approx(float(weights.sum()), rel=1e-5)
    assert float(weights[-1] / weights[0]) == pytest.approx(torch.e**2, rel=0.01)


def test_a_batch_without_weight_has_a_loss_of_zero(small: PreparedDataset) -> None:
    runner = runner_with(torch.zeros(len(small.train)), small)
    assert runner.run(runner.shuffle(0), 0).tolist() == [0.0]


def test_a_sample_has_the_weight_of_its_target(small: PreparedDataset) -> None:
    samples = small.train.part(3, 9)
    by_click = np.arange(len(small.train.items), dtype=np.float32)
    _, targets = samples.locate(torch.arange(len(samples)))
    assert torch.equal(sample_weights(samples, 0.0, by_click), targets.float())
    assert sample_weights(samples, 1.0, by_click)[0] < targets[0]  # and that of its age


def test_weights_of_events_change_what_is_learned(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """A shop that counts clicks on odd items as nothing learns to recommend even ones."""
    is_even = (small.train.items % 2 == 0).float().numpy()
    batch = SessionBatch.of([[1, 2, 3], [4, 5, 6], [10, 11], [20, 21]])
    settings = {**QUICK, "protocol": "paper"}

    def chance_of_even(data: PreparedDataset, name: str) -> float:
        run, _ = fitted(data, "posrec-plus", tmp_path / name, settings)
        chances = run.model.scores(batch).detach().exp()
        return float(chances[:, 1::2].sum(1).mean())

    assert chance_of_even(small, "all") < 0.7
    assert chance_of_even(replace(small, target_weights=is_even), "even") > 0.9


def test_a_sample_knows_when_its_target_was_clicked(small: PreparedDataset) -> None:
    # Sessions in the middle: moments count from their first click.
    samples = small.train.part(3, 9)
    ids = torch.arange(len(samples))
    targets = collate(samples, ids, 10).targets
    assert targets is not None
    moments = samples.moment_of(samples.locate(ids)[1])
    clicks = (moments * samples.clicks).round().long()
    assert torch.equal(samples.items[samples.offsets[0] + clicks].long(), targets)
    assert bool((moments.diff() > 0).all())
    assert 0 < float(moments[0]) < float(moments[-1]) < 1
