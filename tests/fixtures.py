"""A shop of five items whose scores can be worked out by hand, and a small trained run."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary
from posrec.fitting import fit_run
from posrec.models.base import CountingModel
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.run import Run
from tests.helpers import chain_shop

# What each click says of a, b, c, d, e. Scores are the sums over the two clicks that are read, the last counted twice.
SAYS = torch.tensor([
    [0.0, 4.0, 1.0, 0.5, 0.0],
    [1.0, 0.0, 5.0, 0.0, 2.0],
    [0.0, 1.0, 0.0, 3.0, 0.25],
    [2.0, 0.0, 0.0, 0.0, 7.0],
    [0.0, 0.0, -6.0, 1.0, 0.0],
])  # fmt: skip


@dataclass(frozen=True)
class TwoClicksConfig:
    max_length: int = 2


class TwoClicks(CountingModel):
    """Nothing but the scores of a counting model."""

    def __init__(self) -> None:
        super().__init__(5, TwoClicksConfig())

    def scores(self, batch: SessionBatch) -> Tensor:
        assert batch.items.shape[1] <= 2
        scores = []
        for items, length in zip(batch.items.tolist(), batch.lengths.tolist(), strict=True):
            said = [SAYS[item - 1] for item in items[:length]]
            scores.append(sum(said) + said[-1])
        return torch.stack(scores)


@pytest.fixture
def shop_run(tmp_path: Path) -> Run:
    """Items a to e are known to the model; f is in the vocabulary, but training never saw it."""
    titles = ["Anorak", None, "Clogs", None, "Espresso [new]", "Flask"]
    vocabulary = Vocabulary(["a", "b", "c", "d", "e", "f"], {"title": titles})
    return Run(tmp_path / "run", TwoClicks(), vocabulary, {"model": "two", "items": 5}, torch.tensor([3, 9, 1, 7, 5]))


@pytest.fixture
def shop(shop_run: Run) -> Recommender:
    return Recommender(shop_run, "cpu")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Items i0 to i29, each mostly followed by the next."""
    return chain_shop(tmp_path_factory.mktemp("small"), seed=0, prefix="i")


QUICK = {"d": 16, "epochs": 8, "batch_size": 32, "learning_rate": 0.01, "max_length": 10}


@pytest.fixture(scope="session")
def trained(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PosRec on it."""
    return fit_run(small, "posrec", tmp_path_factory.mktemp("runs") / "run", QUICK, "cpu", progress=SilentProgress())[
        0
    ].path


@pytest.fixture(scope="session")
def counted(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_run(small, "pop", tmp_path_factory.mktemp("runs") / "pop", {}, "cpu", progress=SilentProgress())[0].path
