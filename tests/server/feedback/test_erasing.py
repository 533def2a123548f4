"""Rows of a visitor are erased from all files, and nothing else changes."""

import threading
import time
from pathlib import Path

import polars as pl
import pytest

from posrec.io.unfinished import locked
from posrec.server.feedback.answer_ids import KEY_FILE
from posrec.server.feedback.erasing import erase_visitors
from posrec.server.feedback.writing import FeedbackFiles
from tests.helpers import command, listed
from tests.server.feedback.written import convert_all, write, write_days


def test_only_files_with_the_visitor_are_replaced(tmp_path: Path) -> None:
    files = write_days(tmp_path, "anna bert anna", "bert", "anna dora")
    second, third = files[1:]
    pl.read_parquet(third).with_columns(visitor=pl.lit("emil")).write_parquet(third)
    before = second.stat()
    assert erase_visitors(tmp_path, ["anna"]) == (3, 2)
    left = [pl.read_parquet(file)["session"].to_list() for file in files]
    assert left == [["bert"], ["bert"], ["dora"]]
    assert second.stat().st_ino == before.st_ino
    assert erase_visitors(tmp_path, ["emil", "bert"]) == (3, 3)
    assert listed(tmp_path) == [KEY_FILE]  # a file without rows is deleted


def test_a_line_that_a_killed_worker_left_unfinished_is_erased(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    write(files, "clicked", "i1", session="bert")
    left = tmp_path / ".open-20261118T000000-1-1.jsonl"
    (path,) = tmp_path.glob(".open-*")
    whole = path.read_bytes()
    left.write_bytes(whole + b'{"time":17,"session":"anna"')
    assert erase_visitors(tmp_path, ["anna"]) == (0, 0)
    assert left.read_bytes() == path.read_bytes() == whole


def test_a_damaged_file_is_named_and_nothing_is_erased(tmp_path: Path) -> None:
    first, second = write_days(tmp_path, "anna", "anna")
    second.write_bytes(second.read_bytes()[:-10])
    done = command("forget", "--visitor", "anna", "--feedback", tmp_path)
    assert done.code == 2
    assert str(second) in " ".join(done.err.split())
    assert len(pl.read_parquet(first)) == 1


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ((), "name where"),
        (("--feedback", "nowhere"), "nowhere"),
        (("--session-store", "sqlite:nowhere"), "no such file"),
    ],
)
def test_a_place_that_does_not_exist_is_an_input_error(
    options: tuple[str, ...],
    keyword: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("forget", "--visitor", "anna", *options)
    assert done.code == 2
    assert keyword in done.err
    assert listed(tmp_path) == []


def test_a_conversion_waits_until_a_visitor_is_forgotten(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    write(files, "clicked", "i1", session="anna")
    converting = threading.Thread(target=convert_all, args=(files,))
    with locked(tmp_path):
        converting.start()
        time.sleep(0.1)  # in which it would convert if it did not wait
        assert list(tmp_path.glob("*.parquet")) == []
    converting.join()
    assert len(list(tmp_path.glob("*.parquet"))) == 1
