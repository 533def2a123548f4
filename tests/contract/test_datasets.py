"""The datasets that tests write by hand are those that `posrec prepare` writes."""

from pathlib import Path

import posrec
from posrec.data.stats import stats
from posrec.progress import SilentProgress
from posrec.testing import write_dataset
from tests.helpers import plain, write_lines


def test_a_dataset_written_by_hand_is_what_prepare_gives(tmp_path: Path) -> None:
    train = [["a", "b", "a"], ["c", "b"], ["b", "d", "c", "a"]]
    test = [["a", "x"], ["d", "c", "b"]]
    train_file = write_lines(tmp_path / "train.txt", list(map(" ".join, train)))
    test_file = write_lines(tmp_path / "test.txt", list(map(" ".join, test)))
    by_command = posrec.prepare(
        train_file,
        "sessions",
        tmp_path / "prepared",
        test=test_file,
        progress=SilentProgress(),
    )
    by_hand = write_dataset(tmp_path / "written", train, test)
    assert by_hand.vocabulary.ids == by_command.vocabulary.ids
    assert plain(by_hand.train) == plain(by_command.train)
    assert plain(by_hand.test) == plain(by_command.test)
    for field in ("counts", "validation_start"):
        assert by_hand.manifest[field] == by_command.manifest[field]
    assert stats(by_hand)["clicks"] == stats(by_command)["clicks"] == 14
