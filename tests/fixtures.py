"""A shop of five items with scores worked out by hand; small trained runs, with and without an
export for serving."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import Tensor

import posrec
from posrec.data.attribute_reader import AttributeReader
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary
from posrec.errors import RunFailed
from posrec.io import WEIGHTS
from posrec.io.executor import Cluster, ray_cluster
from posrec.models.base import CountingModel, Model
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.recommend.export.writing import add_export
from posrec.recommend.rank.best_items import Columns
from posrec.recommend.rank.encoder import Encoded
from posrec.recommend.rank.faiss_search import IndexSettings
from posrec.recommend.rank.torch_model import AllScores, TorchEncoder, as_floats
from posrec.recommend.recommender import Recommender
from posrec.runs.attributes import Attributes
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from tests.helpers import chain_shop, command, fitted, listed, write_lines, write_log

# What a click on each item adds to the scores of a, b, c, d, e. The model reads two clicks, and the
# last counts twice.
SCORES_OF_A_CLICK = torch.tensor([
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
    """The smallest counting model: scores alone."""

    def __init__(self) -> None:
        super().__init__(5, TwoClicksConfig())

    def scores(self, batch: SessionBatch) -> Tensor:
        assert batch.items.shape[1] <= 2
        scores = []
        for items, length in zip(batch.items, batch.lengths, strict=True):
            of_clicks = SCORES_OF_A_CLICK[items[:length].long() - 1]
            scores.append(of_clicks.sum(0) + of_clicks[-1])
        return torch.stack(scores)


def run_of(model: Model, ids: list[str], name: str, folder: Path = Path("run")) -> Run:
    """A run in memory, of whose items each was clicked once."""
    config = {"model": name, "items": model.items}
    clicks = np.ones(model.items, np.int64)
    return Run(folder, lambda: model, Vocabulary(ids), config, clicks)


def with_attributes(run: Run, *names: str) -> Run:
    """As if it was trained with these columns, from which it learned nothing."""
    kinds = dict.fromkeys(names, "category")
    reader = AttributeReader.learn(kinds, run.vocabulary.columns)
    nothing = np.zeros((reader.number, run.config.get("d", 1)), np.float32)
    attributes = Attributes(reader, nothing, nothing[:0])
    config = {**run.config, "attributes": ",".join(names), "cosine": True}
    return replace(run, attributes=attributes, config=config)


class ScoresOfModel(TorchEncoder):
    """As session vectors the scores of all items, own items included."""

    def encode(self, items: Columns, lengths: Columns) -> Encoded:
        batch = SessionBatch(torch.from_numpy(items), torch.from_numpy(lengths))
        with torch.inference_mode():
            return as_floats(self.model.scores(batch)), None


def by_all_scores(run: Run) -> Recommender:
    """What the search is compared with."""
    return Recommender(run, "cpu", ScoresOfModel(run.model), AllScores())


@pytest.fixture
def shop_run(tmp_path: Path) -> Run:
    """Items a to e are known to the model; f is in the vocabulary, but training never saw it."""
    titles = ["Anorak", None, "Clogs", None, "Espresso [new]", "Flask"]
    vocabulary = Vocabulary(["a", "b", "c", "d", "e", "f"], {"title": titles})
    config = {"model": "two", "items": 5}
    clicks = np.array([3, 9, 1, 7, 5])
    return Run(tmp_path / "run", TwoClicks, vocabulary, config, clicks)


@pytest.fixture
def shop(shop_run: Run) -> Recommender:
    return Recommender(shop_run, "cpu")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Items i0 to i29, each mostly followed by the next."""
    return chain_shop(tmp_path_factory.mktemp("small"), seed=0, prefix="i")


TWO_LISTS = IndexSettings("faiss", lists=2, probes=2)
QUICK = {
    "d": 16,
    "epochs": 8,
    "batch_size": 32,
    "learning_rate": 0.01,
    "max_length": 10,
}


@pytest.fixture(scope="session")
def trained(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    return fitted(small, "posrec", out, QUICK)[0].path


@pytest.fixture(scope="session")
def trained_plus(
    small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Its scores are log probabilities."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**QUICK, "epochs": 2, "protocol": "paper"}
    return fitted(small, "posrec-plus", out, settings)[0].path


@pytest.fixture(scope="session")
def counted(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(small, "pop", tmp_path_factory.mktemp("runs") / "pop")[0].path


@pytest.fixture(scope="session")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_export(trained, tmp_path_factory)


@pytest.fixture(scope="session")
def exported_plus(trained_plus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_export(trained_plus, tmp_path_factory)


def shared_export(run: Path, folders: pytest.TempPathFactory) -> Path:
    """An export takes ten seconds, so all workers of pytest share one."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    shared = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    weights = sha256((run / WEIGHTS).read_bytes()).hexdigest()
    out = shared / f"onnx-{weights}" / "model.onnx"
    with FileLock(f"{out.parent}.lock"):
        if not out.exists():
            done = command("export", run, "--onnx", out)
            assert done.code == 0, done.err
            assert "Scores differ" in done.out
            assert listed(out.parent) == ["model.onnx"]
    return out


def with_export(
    run: Path, file: Path, copy: Path, settings: IndexSettings | None = None
) -> Path:
    """A copy of the run with an export that is made of its ONNX file."""
    from posrec.recommend.export import writing

    shutil.copytree(run, copy)
    onnx = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "checked_onnx", lambda run: (onnx, 0.0))
        writing.write_export(load_run(copy), settings)
    return copy


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training exports no model, which takes seconds and is tested in tests/recommend/export."""
    from posrec.recommend.export import writing

    monkeypatch.setattr(writing, "can_be_exported", lambda run: False)


@pytest.fixture(scope="session")
def trained_with_export(
    trained: Path, exported: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Tests that change it copy it."""
    return with_export(trained, exported, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="session")
def trained_with_index(
    trained: Path, exported: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Tests that change it copy it."""
    pytest.importorskip("faiss")
    copy = tmp_path_factory.mktemp("runs") / "run"
    return with_export(trained, exported, copy, TWO_LISTS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of two workers for all tests of a file; `posrec.prepare` uses it too."""
    pytest.importorskip("ray")
    with ExitStack() as stack:
        yield patiently_started(stack)


def patiently_started(stack: ExitStack, tries: int = 3) -> Cluster:
    """Ray gives its processes 30 seconds to start, too short on a stalled machine."""
    for _ in range(tries):
        try:
            return stack.enter_context(ray_cluster(workers=2))
        except RunFailed as error:
            if "timed out during startup" not in str(error):
                raise
    pytest.skip(f"Ray did not start within 30 seconds, {tries} times")


QUICK_PLUS: dict[str, Any] = {
    "d": 16,
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 0.02,
    "max_length": 10,
    "protocol": "paper",
    "item_dropout": 0.0,
    "repeat_dropout": 0.0,
}
KINDS = ("tents", "mats", "stoves", "boots")


@pytest.fixture(scope="session")
def described_shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Twelve items of four kinds; a kind is always followed by the next. Items n0 to n3, one of
    each kind, have no clicks."""
    folder = tmp_path_factory.mktemp("described")
    clicks = []
    for session in range(240):
        for step in range(4):
            kind = (session * 7 + step) % 4
            item = kind + 4 * ((session + step * step) % 3)
            clicks.append((f"s{session}", f"i{item}", 60_000 * session + step))
    rows = [f"i{item},{KINDS[item % 4]}" for item in range(12)]
    rows += [f"n{number},{kind}" for number, kind in enumerate(KINDS)]
    data = posrec.prepare(
        write_log(folder / "clicks.csv", clicks),
        "csv",
        folder / "data",
        items=write_lines(folder / "items.csv", ["id,category", *rows]),
        all_items=True,
        progress=SilentProgress(),
    )
    assert data.train_items == 12
    assert data.recommendable_items == len(data.vocabulary) == 16
    return data


@pytest.fixture(scope="session")
def described_run(
    described_shop: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**QUICK_PLUS, "attributes": "category"}
    run, _ = fitted(described_shop, "posrec-plus", out, settings)
    add_export(run, SilentProgress())
    return run.path
