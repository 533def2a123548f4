"""SessionDataset, the prepared folder, and its fingerprint."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import posrec
from posrec.data.arrays import ARRAYS, fingerprint
from posrec.data.dataset import PreparedDataset, SessionDataset, with_items_of
from posrec.data.stats import stats
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.testing import write_dataset
from tests.helpers import plain, small_shop, update_checksums, write_log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("data")
    log = write_log(folder / "c.csv", small_shop())
    return posrec.prepare(log, "csv", folder / "out")


def test_sessions_are_flat_arrays() -> None:
    items = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int32)
    offsets = torch.tensor([0, 3, 4, 6])
    sessions = SessionDataset(items, offsets, torch.tensor([10, 20, 30]))
    assert (len(sessions), sessions.sessions) == (3, 3)
    assert (sessions.clicks, sessions.longest) == (6, 3)
    assert sessions.sample_offsets.tolist() == [0, 2, 2, 3]
    assert sessions.lengths.tolist() == [3, 1, 2]
    assert plain(sessions) == [[1, 2, 3], [4], [5, 6]]
    later = sessions.part(1, 3)
    assert (plain(later), later.times.tolist()) == ([[4], [5, 6]], [20, 30])
    assert len(later) == 1
    assert later.items.data_ptr() == items.data_ptr()
    assert (sessions.part(1, 1).sessions, sessions.part(1, 1).longest) == (0, 0)


def test_loading_copies_the_arrays_and_never_writes_to_them(
    data: PreparedDataset,
) -> None:
    again = posrec.load(data.path)
    assert again.train.items.dtype == torch.int32
    before = (data.path / "train_items.npy").read_bytes()
    again.train.items[0] = 99
    assert (data.path / "train_items.npy").read_bytes() == before
    assert plain(posrec.load(str(data.path)).train) == plain(data.train)


def test_the_arrays_are_what_numpy_reads(data: PreparedDataset) -> None:
    for name, kind in ARRAYS.items():
        array = np.load(data.path / f"{name}.npy", allow_pickle=False)
        assert array.dtype == kind
    assert np.load(data.path / "train_offsets.npy").tolist() == list(range(0, 82, 3))


def test_the_fingerprint_depends_on_the_content_and_not_on_the_path(
    data: PreparedDataset, tmp_path: Path
) -> None:
    shutil.copytree(data.path, tmp_path / "elsewhere")
    assert stats(posrec.load(tmp_path / "elsewhere"))["fingerprint"] == data.fingerprint
    log = write_log(tmp_path / "another name.csv", small_shop())
    again = posrec.prepare(log, "csv", tmp_path / "again")
    assert again.fingerprint == data.fingerprint


FILES = [*(f"{name}.npy" for name in ARRAYS), "vocabulary.json"]


@given(st.sampled_from(FILES), st.data())
def test_any_changed_byte_changes_the_fingerprint(
    data: PreparedDataset, tmp_path: Path, name: str, draw: st.DataObject
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(data.path, folder, dirs_exist_ok=True)
    content = bytearray((folder / name).read_bytes())
    position = draw.draw(st.integers(0, len(content) - 1))
    content[position] ^= draw.draw(st.integers(1, 255))
    (folder / name).write_bytes(content)
    assert fingerprint(folder, data.manifest["validation_start"]) != data.fingerprint
    with pytest.raises(InputError, match=r"damaged|again|not JSON|changed"):
        stats(posrec.load(folder))


def test_the_start_of_validation_is_part_of_the_fingerprint(
    data: PreparedDataset,
) -> None:
    start = data.manifest["validation_start"]
    assert fingerprint(data.path, start) == data.fingerprint
    assert fingerprint(data.path, start - 1) != data.fingerprint


def change_items(
    change: Callable[[np.ndarray], np.ndarray],
) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        np.save(folder / "train_items.npy", change(np.load(folder / "train_items.npy")))

    return apply


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing array": (remove("train_items.npy"), "not listed"),
    "other type": (change_items(lambda items: items.astype(np.int64)), "holds int64"),
    "shorter array": (change_items(lambda items: items[:-1]), "train arrays don't fit"),
    "pickled array": (change_items(lambda _: np.array([{}])), "can't be read"),
    "wrong schema": (write("manifest.json", '{"schema": 99}'), "schema 99"),
    "manifest cut short": (write("manifest.json", '{"schema": 1}'), "lacks counts"),
    "manifest no JSON": (write("manifest.json", "{"), "is not JSON"),
    "no manifest": (remove("manifest.json"), "is not a prepared dataset"),
    "shorter vocabulary": (
        write("vocabulary.json", '{"ids": ["a"], "columns": {}}'),
        "vocabulary doesn't fit",
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_is_refused(
    data: PreparedDataset, tmp_path: Path, how: str
) -> None:
    """By its checksums, and also if these are of the damaged files."""
    damage, message = DAMAGES[how]
    folder = tmp_path / "copy"
    shutil.copytree(data.path, folder)
    damage(folder)
    with pytest.raises(
        InputError, match=r"does not match|is missing|is not a prepared dataset"
    ):
        posrec.load(folder)
    update_checksums(folder)
    with pytest.raises(InputError, match=message):
        posrec.load(folder)


def test_a_dataset_without_checksums_is_refused(
    data: PreparedDataset, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(data.path, folder)
    (folder / "checksums.json").unlink()
    with pytest.raises(InputError, match=r"has no checksums\.json"):
        posrec.load(folder)


def test_items_of_an_older_vocabulary_are_added(tmp_path: Path) -> None:
    test = [["a", "new", "d"]]  # new and d do not occur in training
    data = write_dataset(tmp_path / "data", [["a", "b"], ["b", "c"]], test)
    data.vocabulary.columns["title"] = ["A", "B", "C", None, "D"]
    titles = ["E", "old B", "old D", "U"]
    older = Vocabulary(
        ["e", "b", "d", "unknown"], {"title": titles, "price": [1, 2, 3, 4]}
    )
    more = with_items_of(data, older, 3)
    assert more.vocabulary.ids == ["a", "b", "c", "e", "d", "new"]
    assert more.vocabulary.columns == {"title": ["A", "B", "C", "E", "D", None]}
    assert (more.train_items, more.recommendable_items) == (5, 5)
    assert more.train.items.tolist() == data.train.items.tolist() == [1, 2, 2, 3]
    assert more.test.items.tolist() == [1, 6, 5]
    assert more.fingerprint != data.fingerprint
    assert (data.vocabulary.ids, data.train_items) == (["a", "b", "c", "new", "d"], 3)


def test_no_item_of_an_older_vocabulary_is_new(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [["a", "b"]], [["a", "b"]])
    assert with_items_of(data, Vocabulary(["b", "x"]), 1) is data
