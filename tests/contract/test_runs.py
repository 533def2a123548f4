"""What every model's runs keep to beside the contract: they resume to the same weights, and beat
popularity."""

import signal
from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.demo.shop import make_demo
from posrec.errors import RunStopped
from posrec.io import WEIGHTS, load_tensors
from posrec.progress import SilentProgress
from posrec.testing import TRAINING, known_settings, same
from tests.contract.models import MODELS, TRAINED
from tests.helpers import chain_shop, fitted, slowly

# Shallow, because a hundred steps teach a deep model little more than what is popular.
SHALLOW = {
    "d": 32,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "batch_size": 128,
    "dropout": 0.0,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Small; some of its test clicks are on items that training never saw."""
    folder = tmp_path_factory.mktemp("chain")
    data = chain_shop(folder, seed=0, sessions=120, new_items=3)
    assert data.train_items < len(data.vocabulary)
    return data


class Interrupting(SilentProgress):
    """Asks for a stop, as Ctrl-C and SIGTERM do, after this many steps of training."""

    def __init__(self, after: int) -> None:
        self.left = after

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work.startswith("Epoch"):  # nothing listens to signals while evaluating
            self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


QUICK = ("posrec", "posrec-plus", "gru4rec", "own")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else slowly(name) for name in TRAINED]
)
def test_a_stopped_run_ends_with_the_weights_of_a_whole_one(
    name: str, data: PreparedDataset, tmp_path: Path
) -> None:
    spec = MODELS[name]
    settings = known_settings(spec, TRAINING)
    fitted(data, spec, tmp_path / "whole", settings)
    with pytest.raises(RunStopped):
        fitted(data, spec, tmp_path / "cut", settings, progress=Interrupting(after=3))
    fitted(data, spec, tmp_path / "cut", settings, resume=True)
    weights, _ = load_tensors(tmp_path / "whole" / WEIGHTS)
    resumed, _ = load_tensors(tmp_path / "cut" / WEIGHTS)
    assert same(weights, resumed)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """The demo shop, but with fewer shoppers."""
    return make_demo(tmp_path_factory.mktemp("demo") / "shop", sessions=3000)


@pytest.fixture(scope="module")
def popular(
    shop: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, float]:
    run = tmp_path_factory.mktemp("pop") / "run"
    return fitted(shop, MODELS["pop"], run)[1].metrics


@pytest.mark.slow  # it trains every model: minutes
@pytest.mark.parametrize("name", [name for name in MODELS if name != "pop"])
def test_it_beats_what_is_popular_on_the_demo_shop(
    name: str, shop: PreparedDataset, popular: dict[str, float], tmp_path: Path
) -> None:
    spec = MODELS[name]
    settings = known_settings(spec, {**TRAINING, **SHALLOW})
    _, outcome = fitted(shop, spec, tmp_path / "run", settings)
    for metric in ("recall@20", "mrr@20"):
        assert outcome.metrics[metric] > 1.5 * popular[metric]
