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
    files = [
        write_lines(
            tmp_path / f"{name}.txt", [" ".join(session) for session in sessions]
        )
        for name, sessions in (("train", train), ("test", test))
    ]
    by_command = posrec.prepare(
        files[0],
        "sessions",
        tmp_path / "prepared",
        test=files[1],
        progress=SilentProgress(),
    )
    by_hand = write_dataset(tmp_path / "written", train, test)
    assert by_hand.vocabulary.ids == by_command.vocabulary.ids
    assert plain(by_hand.train) == plain(by_command.train)
    assert plain(by_hand.test) == plain(by_command.test)
    assert by_hand.manifest["counts"] == by_command.manifest["counts"]
    assert (
        by_hand.manifest["validation_start"] == by_command.manifest["validation_start"]
    )
    assert stats(by_hand)["clicks"] == stats(by_command)["clicks"] == 14
