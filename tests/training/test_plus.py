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
from posrec.fitting.fit import fit_run
from posrec.io import WEIGHTS, load_tensors
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.nn.batch import SessionBatch
from posrec.progress import Progress, SilentProgress
from posrec.testing import same
from posrec.training.adam import make_optimizer
from posrec.training.epoch import EpochRunner, sample_weights
from posrec.training.losses import losses_of
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss

QUICK: dict[str, Any] = {
    "d": 16,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 0.02,
    "max_length": 10,
}


def fit(
    data: PreparedDataset,
    out: Path,
    progress: Progress | None = None,
    resume: bool = False,
    **changes: Any,
):
    return fit_run(
        data,
        "posrec-plus",
        out,
        {**QUICK, **changes},
        "cpu",
        resume,
        progress or SilentProgress(),
        export=False,
    )


@pytest.mark.parametrize(
    "softmax", [softmax_loss, lambda items: softmax_loss(items, chunk=5)]
)
def test_the_loss_is_the_negative_log_probability(softmax: Any) -> None:
    torch.manual_seed(0)
    model = PosRecPlus(12, PosRecPlusConfig(d=8, max_length=9)).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    # one of the session, two not
    batch = SessionBatch.of([[1, 2, 1], [3], [4, 5]])
    targets = torch.tensor([2, 7, 12])
    losses = losses_of(softmax(12), model.batch_vectors(batch), targets)
    assert torch.allclose(
        losses, -model.scores(batch).gather(1, targets[:, None] - 1)[:, 0]
    )


def test_ranking_losses_are_refused(small: PreparedDataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loss=bpr: this model needs a softmax"):
        fit(small, tmp_path / "run", loss="bpr")
    assert not (tmp_path / "run").exists()


def test_it_learns_and_its_learning_rate_falls(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run, evaluation = fit(small, tmp_path / "run")
    assert (
        evaluation.metrics["recall@5"] > 0.5
    )  # item i is mostly followed by item i + 1, of 60 items
    log = [
        json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()
    ]
    assert json.loads((run.path / "selection.json").read_text()).keys() == {
        "epochs",
        "ndcg@20",
    }
    rates = [
        line["learning_rate"]
        for line in log
        if "learning_rate" in line and "part" not in line
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1 * rates[0] or len(rates) < 3  # it falls along the cosine


def test_a_run_stopped_after_the_last_step_of_an_epoch_is_resumed(
    small: PreparedDataset, tmp_path: Path
) -> None:
    class StopAtTheEnd(SilentProgress):
        def update(self, work: str, done: float, total: float, note: str = "") -> None:
            if (
                work == "Epoch 1 of 2" and done == total - 1
            ):  # it is heeded after the next step
                signal.raise_signal(signal.SIGTERM)

    short: dict[str, Any] = {"epochs": 2, "protocol": "paper"}
    run, _ = fit(small, tmp_path / "whole", **short)
    with pytest.raises(RunStopped, match="stopped in epoch 1"):
        fit(small, tmp_path / "cut", StopAtTheEnd(), **short)
    fit(small, tmp_path / "cut", resume=True, **short)
    assert same(
        load_tensors(tmp_path / "cut" / WEIGHTS)[0], load_tensors(run.path / WEIGHTS)[0]
    )


def test_recent_samples_weigh_more(small: PreparedDataset) -> None:
    config = PosRecPlusConfig(d=8, max_length=10)
    settings = Settings(batch_size=50)
    model = PosRecPlus(small.train_items, config)
    cpu = torch.device("cpu")
    weights = sample_weights(small.train, 2.0)
    optimizer = make_optimizer(model, settings, cpu)
    runner = EpochRunner(
        model, optimizer, small.train, settings, small.train_items, weights
    )
    order = runner.shuffle(0)
    count = len(small.train)
    assert order.samples == count
    found = torch.cat(
        [runner.batches.read(batch[None], 10, None)[0][1] for batch in order.batches]
    )
    assert torch.allclose(found.sort().values, weights)  # each sample is in one batch
    total = runner.batches.total_weights(order.batches)
    assert float(total.sum()) == pytest.approx(float(weights.sum()), rel=1e-5)
    assert float(weights[-1] / weights[0]) == pytest.approx(torch.e**2, rel=0.01)


def test_a_batch_without_weight_has_a_loss_of_zero(small: PreparedDataset) -> None:
    settings = Settings(batch_size=50)
    cpu = torch.device("cpu")
    model = PosRecPlus(small.train_items, PosRecPlusConfig(d=8, max_length=10))
    model.count(small.train.items, small.train.offsets)
    weights = torch.zeros(len(small.train))
    optimizer = make_optimizer(model, settings, cpu)
    runner = EpochRunner(
        model, optimizer, small.train, settings, small.train_items, weights
    )
    assert runner.run(runner.shuffle(0), 0).tolist() == [0.0]


def test_a_sample_has_the_weight_of_its_target(small: PreparedDataset) -> None:
    part = small.train.part(3, 9)
    clicks = len(small.train.items)
    by_click = np.arange(clicks, dtype=np.float32)
    _, targets = part.locate(torch.arange(len(part)))
    assert torch.equal(sample_weights(part, 0.0, by_click), targets.float())
    assert sample_weights(part, 1.0, by_click)[0] < targets[0]  # and that of its age


def test_weights_of_events_change_what_is_learned(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """A shop that counts clicks on odd items as nothing learns to recommend even ones."""
    weights = np.where(small.train.items.numpy() % 2 == 0, 1, 0).astype(np.float32)
    batch = SessionBatch.of([[1, 2, 3], [4, 5, 6], [10, 11], [20, 21]])
    of_even = []
    for number, data in enumerate((small, replace(small, target_weights=weights))):
        run, _ = fit(data, tmp_path / f"run-{number}", protocol="paper")
        of_even.append(
            float(run.model.scores(batch).detach().exp()[:, 1::2].sum(1).mean())
        )
    assert of_even[0] < 0.7
    assert of_even[1] > 0.9


def test_a_sample_knows_when_its_target_was_clicked(small: PreparedDataset) -> None:
    part = small.train.part(
        3, 9
    )  # sessions in the middle: moments count from the part's own first click
    ids = torch.arange(len(part))
    targets = collate(part, ids, 10).targets
    moments = part.moments(ids)
    places = (moments * part.clicks).round().long()
    assert torch.equal(part.items[part.offsets[0] + places].long(), targets)
    assert bool((moments.diff() > 0).all())
    assert 0 < float(moments[0]) < float(moments[-1]) < 1
