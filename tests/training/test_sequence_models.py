"""Recurrent and attention models in training: compiled, in bfloat16, and with every loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.training.losses import choose_loss
from posrec.training.settings import RANKING_LOSSES, Settings
from posrec.training.softmax import softmax_loss
from tests.helpers import fitted
from tests.models.checks import ITEMS, WITH_UNKNOWN

SEQUENCE = ("bprmf", "fpmc", "gru4rec", "narm", "stamp")
QUICK = {
    "d": 16,
    "epochs": 8,
    "batch_size": 32,
    "learning_rate": 0.01,
    "decay_every": 8,
}


def mrr(data: PreparedDataset, model: str, out: Path, **changes: Any) -> float:
    hidden = {"hidden": 16} if model in ("gru4rec", "narm") else {}
    _, evaluation = fitted(data, model, out / "run", {**QUICK, **hidden, **changes})
    return evaluation.metrics["mrr@5"]


@pytest.fixture(scope="module")
def popular(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What recommending the most clicked items reaches."""
    _, evaluation = fitted(small, "pop", tmp_path_factory.mktemp("pop") / "run")
    return evaluation.metrics["mrr@5"]


@pytest.mark.parametrize("model", [*SEQUENCE, "posrec"])
def test_it_learns_with_its_own_settings(
    small: PreparedDataset, popular: float, tmp_path: Path, model: str
) -> None:
    """Mostly i is followed by i + 1, so who reads the last click finds it; the mean of a session is
    a weaker hint."""
    gain = 0.05 if model == "bprmf" else 0.3
    assert mrr(small, model, tmp_path) > popular + gain


@pytest.mark.slow
@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_gru4rec_learns_from_every_loss(
    small: PreparedDataset, tmp_path: Path, loss: str
) -> None:
    assert mrr(small, "gru4rec", tmp_path, loss=loss, l2=0.0, score_l2=0.1) > 0.4


def built(model: str) -> SessionModel:
    torch.manual_seed(0)
    network = MODELS[model].build(ITEMS, MODELS[model].config()).eval()
    assert isinstance(network, SessionModel)
    return network


@pytest.mark.parametrize("model", ["gru4rec", "narm", "stamp"])
def test_bf16_stays_near(model: str) -> None:
    network = built(model)
    exact = network.scores(SessionBatch.of(WITH_UNKNOWN)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        reduced = network.scores(SessionBatch.of(WITH_UNKNOWN))
    assert torch.allclose(reduced.float(), exact, atol=0.05 * float(exact.abs().max()))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("model", SEQUENCE)
def test_compiled_loss_and_gradients_are_the_plain_ones(model: str) -> None:
    network = built(model)
    targets = torch.arange(1, len(WITH_UNKNOWN) + 1)

    def loss(batch: SessionBatch) -> Tensor:
        return softmax_loss(ITEMS)(*network.vectors(batch), targets).sum()

    outcomes = []
    for call in (loss, torch.compile(loss, dynamic=False)):
        network.zero_grad()
        value = call(SessionBatch.of(WITH_UNKNOWN))
        value.backward()
        gradients = [weight.grad.clone() for weight in network.parameters()]
        outcomes.append([value.detach(), *gradients])
    for plain, compiled in zip(*outcomes, strict=True):
        assert torch.allclose(plain, compiled, atol=1e-5)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_compiled_draws_differ_from_batch_to_batch(name: str) -> None:
    """A compiled loss must not take the first draw for a constant."""
    torch.manual_seed(0)
    batch = (torch.randn(4, 8), torch.randn(40, 8), torch.tensor([1, 2, 3, 40]))
    settings = Settings(loss=name, negatives=8)
    loss = torch.compile(choose_loss(settings, 40, torch.arange(1, 41)), dynamic=False)
    assert not torch.equal(loss(*batch), loss(*batch))
