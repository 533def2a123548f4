"""A dataset with the items of an older vocabulary."""

from pathlib import Path

from posrec.data.kept_items import with_items_of
from posrec.data.vocabulary import Vocabulary
from posrec.testing import write_dataset


def test_numbers_columns_and_counts(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [["a", "b"], ["b", "c"]], [["a", "new", "d"]])  # new and d: test alone
    data.vocabulary.columns["title"] = ["A", "B", "C", None, "D"]
    older = Vocabulary(["e", "b", "d", "unknown"], {"title": ["E", "old B", "old D", "U"], "price": [1, 2, 3, 4]})
    more = with_items_of(data, older, 3)
    assert more.vocabulary.ids == ["a", "b", "c", "e", "d", "new"]
    assert more.vocabulary.columns == {"title": ["A", "B", "C", "E", "D", None]}
    assert (more.train_items, more.recommendable_items) == (5, 5)
    assert more.train.items.tolist() == data.train.items.tolist() == [1, 2, 2, 3]
    assert more.test.items.tolist() == [1, 6, 5]
    assert more.fingerprint != data.fingerprint
    assert (data.vocabulary.ids, data.train_items) == (["a", "b", "c", "new", "d"], 3)


def test_nothing_to_add(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [["a", "b"]], [["a", "b"]])
    assert with_items_of(data, Vocabulary(["b", "x"]), 1) is data
