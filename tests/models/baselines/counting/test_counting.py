"""What every counting model keeps to: padding, batches, unknown items, sessions of any length, runs
on disk."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st

from posrec.data.dataset import SessionDataset
from posrec.errors import InputError
from posrec.io import WEIGHTS, load_tensors, save_tensors
from posrec.models.baselines.counting import neighbours
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.runs.run import load_run
from tests.helpers import chain_shop, fitted as fit, update_checksums
from tests.models.baselines.counting.small_logs import (
    ITEMS,
    fitted,
    flat,
    logs,
    sessions,
)

COUNTING = [name for name, spec in MODELS.items() if not spec.is_trained]
LOG = [[1, 2, 3], [3, 3, 4], [5, 1, 2, 6], [7, 8], [2, 1], [9, 1, 5]]
each = pytest.mark.parametrize("name", COUNTING)


def make(name: str, log: list[list[int]] = LOG) -> Any:
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
    whole = SessionBatch.of(batch)
    padded_items = torch.nn.functional.pad(whole.items, (0, padding))
    padded = SessionBatch(padded_items, whole.lengths)
    alone = torch.cat([model.scores(SessionBatch.of([session])) for session in batch])
    with patch.object(neighbours, "SESSIONS_AT_A_TIME", 2):
        assert torch.allclose(model.scores(padded), alone)
    assert torch.allclose(model.scores(whole), alone)
    assert alone.shape == (len(batch), ITEMS)


@each
def test_with_unknown_items_alone_the_order_is_popularity(name: str) -> None:
    scores = make(name).scores(SessionBatch.of([[50, 60], [1, 2]]))
    popular = make("pop").scores(SessionBatch.of([[1]]))[0]
    _, order = scores[0].unique(return_inverse=True)
    _, popular_order = popular.unique(return_inverse=True)
    assert torch.equal(order, popular_order)
    if name != "pop":
        assert not torch.equal(scores[1], scores[0])


@each
def test_a_part_of_a_dataset_counts_as_its_own_sessions(name: str) -> None:
    """`part` shares the clicks of the whole; what is outside must not be counted."""
    middle = SessionDataset(*flat(LOG), torch.arange(len(LOG))).part(1, 4)
    model = MODELS[name].build(ITEMS, MODELS[name].config())
    model.count(middle.items, middle.offsets)
    batch = SessionBatch.of([[1, 2], [3], [7]])
    assert torch.equal(model.scores(batch), make(name, LOG[1:4]).scores(batch))


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    fit(chain_shop(tmp_path, seed=0, sessions=30), "vsknn", tmp_path / "run")
    tensors, about = load_tensors(tmp_path / "run" / WEIGHTS)
    save_tensors(tmp_path / "run" / WEIGHTS, {**tensors, "rest": torch.zeros(2)}, about)
    update_checksums(tmp_path / "run")
    with pytest.raises(InputError, match=r"does not fit its config\.json"):
        load_run(tmp_path / "run")
