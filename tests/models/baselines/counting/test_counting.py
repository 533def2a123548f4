"""What every counting model keeps to: padding, batches, unknown items, sessions of any length, runs
on disk."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import InputError
from posrec.fitting.fit import fit_run
from posrec.io import WEIGHTS, load_tensors, save_tensors
from posrec.models.baselines.counting import neighbours
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from tests.helpers import small_shop, update_checksums, write_log
from tests.models.baselines.counting.small_logs import ITEMS, fitted, logs, sessions

COUNTING = [name for name, spec in MODELS.items() if not spec.is_trained]
LOG = [[1, 2, 3], [3, 3, 4], [5, 1, 2, 6], [7, 8], [2, 1], [9, 1, 5]]
each = pytest.mark.parametrize("name", COUNTING)


def make(name: str, log: list[list[int]] = LOG):
    return fitted(MODELS[name].build, MODELS[name].config(), log)


def test_these_models_count() -> None:
    assert COUNTING == ["pop", "spop", "itemknn", "vsknn", "stan", "coclick"]


@each
@given(
    log=logs,
    batch=st.lists(sessions, min_size=1, max_size=5),
    padding=st.integers(0, 5),
)
def test_neither_neighbours_in_the_batch_nor_padding_change_a_score(
    name: str, log: list[list[int]], batch: list[list[int]], padding: int
) -> None:
    model = make(name, log)
    made = SessionBatch.of(batch)
    padded = SessionBatch(
        torch.nn.functional.pad(made.items, (0, padding)), made.lengths
    )
    alone = torch.cat([model.scores(SessionBatch.of([session])) for session in batch])
    with patch.object(neighbours, "SESSIONS_AT_A_TIME", 2):
        assert torch.allclose(model.scores(padded), alone)
    assert torch.allclose(model.scores(made), alone)
    assert alone.shape == (len(batch), ITEMS)


@each
def test_with_unknown_items_alone_the_order_is_popularity(name: str) -> None:
    scores = make(name).scores(SessionBatch.of([[50, 60], [1, 2]]))
    popular = make("pop").scores(SessionBatch.of([[1]]))[0]
    assert torch.equal(
        scores[0].unique(return_inverse=True)[1], popular.unique(return_inverse=True)[1]
    )
    if name != "pop":
        assert not torch.equal(scores[1], scores[0])


@each
def test_a_part_of_a_dataset_counts_as_its_own_sessions(name: str) -> None:
    """`part` shares the clicks of the whole; what is outside must not be counted."""
    clicks = torch.tensor(
        [item for session in LOG for item in session], dtype=torch.int32
    )
    offsets = torch.tensor([0, *map(len, LOG)]).cumsum(0)
    part = SessionDataset(clicks, offsets, torch.arange(len(LOG))).part(1, 4)
    model = MODELS[name].build(ITEMS, MODELS[name].config())
    model.count(part.items, part.offsets)
    batch = SessionBatch.of([[1, 2], [3], [7]])
    assert torch.equal(model.scores(batch), make(name, LOG[1:4]).scores(batch))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("shop")
    prepare = pytest.importorskip(
        "posrec.data.prepare.pipeline", reason="needs polars"
    ).prepare
    return prepare(
        write_log(folder / "clicks.csv", small_shop()),
        "csv",
        folder / "data",
        progress=SilentProgress(),
    )


def test_a_file_of_another_size_is_refused(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    fit_run(shop, "vsknn", tmp_path / "run", device="cpu", progress=SilentProgress())
    tensors, about = load_tensors(tmp_path / "run" / WEIGHTS)
    save_tensors(tmp_path / "run" / WEIGHTS, {**tensors, "rest": torch.zeros(2)}, about)
    update_checksums(tmp_path / "run")
    with pytest.raises(InputError, match=r"does not fit its config\.json"):
        load_run(tmp_path / "run")
