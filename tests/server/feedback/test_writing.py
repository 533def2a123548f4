"""Files of feedback: written row by row, converted to Parquet, read by prepare and report."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from posrec.errors import InputError, RunFailed
from posrec.io import unfinished
from posrec.server.feedback import writing as module
from posrec.server.feedback.answer_ids import KEY_FILE, is_signed, new_answer_id
from posrec.server.feedback.writing import FeedbackFiles, convert_and_close
from tests.helpers import command, listed
from tests.server.feedback.written import convert_all, parquet_rows
from tests.server.full_disk import largest_file

FINGERPRINT = "5f0c9e1b7a42"


@pytest.fixture
def files(tmp_path: Path) -> FeedbackFiles:
    return FeedbackFiles(tmp_path)


def test_the_key_stays_with_the_folder(tmp_path: Path) -> None:
    key = FeedbackFiles(tmp_path).key
    assert FeedbackFiles(tmp_path).key == key
    assert FeedbackFiles(tmp_path / "other").key != key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(InputError, match="key"):
        FeedbackFiles(tmp_path)
    with pytest.raises(InputError, match="can't be written"):
        FeedbackFiles(tmp_path / KEY_FILE)


def test_only_whole_ids_of_the_server_are_signed() -> None:
    key = bytes(32)
    other_key = bytes(31) + b"1"
    answer = new_answer_id(FINGERPRINT, "night-1", key)
    assert is_signed(answer, key)
    assert not is_signed(answer, other_key)
    unsigned = new_answer_id(FINGERPRINT, "night-1", None)
    changed = [answer[:-1], answer[1:], "a" + answer, "", "é", f"{FINGERPRINT}-1"]
    for forged in (unsigned, *changed):
        assert not is_signed(forged, key)


def test_the_id_of_an_answer_says_which_items_were_explored(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    answer = new_answer_id(FINGERPRINT, "night-1", files.key, ["new é", "newer"])
    forged = answer[:-1] + "!"
    without_new_items = new_answer_id(FINGERPRINT, "night-1", files.key)
    assert is_signed(answer, files.key)
    files.write(answer, "shown", ["old", "new é", "newer"])
    for answer_id in (answer, forged, without_new_items):
        files.write(answer_id, "clicked", ["newer"])
    convert_all(files)
    rows = parquet_rows(tmp_path).select("event", "item", "explored").rows()
    assert rows == [
        ("shown", "old", False),
        ("shown", "new é", True),
        ("shown", "newer", True),
        ("clicked", "newer", True),
        ("clicked", "newer", False),
        ("clicked", "newer", False),
    ]


def test_prepare_reads_feedback(tmp_path: Path) -> None:
    clock = iter(1_700_000_000 + 60.0 * n for n in range(10_000))
    files = FeedbackFiles(tmp_path / "feedback", lambda: next(clock))
    for visit in range(40):
        items = [f"i{(visit + step) % 4}" for step in range(3)]
        files.write(f"run-{visit}", "shown", items, f"v{visit}")
        for item in items:
            files.write(f"run-{visit}", "clicked", [item], f"v{visit}")
    convert_all(files)
    log = tmp_path / "feedback" / "*.parquet"
    shop = tmp_path / "shop"
    options = ("--format", "parquet", "--events", "clicked", "--no-test")
    done = command("prepare", log, *options, "--out", shop)
    assert done.code == 0, done.err
    stats = json.loads(command("stats", shop, "--json").out)
    assert (stats["train_sessions"], stats["items"]) == (40, 4)


def test_rows_of_several_threads_are_all_written(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    answers = [f"a{number}" for number in range(200)]
    with ThreadPoolExecutor(4) as threads:
        for answer in answers:
            threads.submit(files.write, answer, "shown", ["i1", "i2"])
    convert_all(files)
    assert sorted(parquet_rows(tmp_path)["answer"]) == sorted(answers * 2)


def test_a_file_becomes_a_parquet_file_by_its_rows_and_by_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROTATE_ROWS", 4)
    now = 1_700_000_000.0
    files = FeedbackFiles(tmp_path, lambda: now)
    # The file is old; or the clock was set back, and the file would stay open for long.
    for passed in (module.ROTATE_SECONDS, -module.ROTATE_SECONDS):
        files.write("run-1", "shown", ["x"])
        assert not files.take_files()
        now += passed
        (old,) = files.take_files()
        old.close()
    files.write("run-1", "shown", ["a", "b"])
    files.write("run-1", "shown", ["a", "b"])
    files.write("run-1", "shown", ["c"])  # into another file
    (full,) = files.take_files()
    convert_and_close(full)
    rows = parquet_rows(tmp_path).rows(named=True)
    assert len(rows) == 4
    row = rows[1]
    assert (row["time"], row["event"]) == (1_700_000_000_000, "shown")
    assert (row["item"], row["rank"]) == ("b", 2)
    assert (row["session"], row["answer"], row["run"]) == ("run-1", "run-1", "run")
    assert (row["signed"], row["explored"]) == (False, False)
    assert (row["visitor"], row["name"], row["value"]) == (None, None, None)


def test_rows_that_can_t_be_converted_stay_and_the_next_start_converts_them(
    files: FeedbackFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, rows: pl.DataFrame) -> None:
        raise OSError("No space left on device")

    def lengths() -> list[int]:
        parquet = tmp_path.glob("*.parquet")
        return sorted(len(pl.read_parquet(path)) for path in parquet)

    files.write("run-1", "shown", ["a", "b"])
    with monkeypatch.context() as full_disk:
        full_disk.setattr(module, "replace_parquet", fail)
        convert_all(files)
    assert lengths() == []
    files.write("run-1", "clicked", ["a"])  # goes on, in another file
    FeedbackFiles(tmp_path).convert_leftovers()
    assert lengths() == [2]
    convert_all(files)
    assert lengths() == [1, 2]


def test_what_a_killed_worker_left_behind_is_converted_and_what_is_in_use_is_not(
    tmp_path: Path,
) -> None:
    alive = tmp_path / "alive"
    dead = tmp_path / "dead"
    in_use = FeedbackFiles(alive)  # holds the lock on its file
    in_use.write("run-1", "clicked", ["a"], "v")
    (open_file,) = alive.glob(".open-*")
    dead.mkdir()
    shutil.copy(open_file, dead)
    with (dead / open_file.name).open("ab") as file:
        file.write("{é\n".encode("latin-1"))  # not UTF-8
        file.write(b'{"time": 1, "sess')  # cut off in the middle of a row
    FeedbackFiles(dead).convert_leftovers()
    FeedbackFiles(alive).convert_leftovers()
    assert len(parquet_rows(dead)) == 1
    assert listed(alive) == [KEY_FILE, open_file.name]


def test_a_full_disk_takes_all_rows_of_a_request_or_none(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    files.write("run-1", "clicked", ["a"], "v")
    (open_file,) = tmp_path.glob(".open-*")
    room = open_file.stat().st_size + 1
    less_than_a_buffer = ["b"]
    cut_in_a_character = ["é" * 1000] * 40
    for items in (less_than_a_buffer, cut_in_a_character):
        with largest_file(room), pytest.raises(RunFailed, match="can't be written"):
            files.write("run-1", "clicked", items, "v")
    files.write("run-1", "clicked", ["c"], "v")
    convert_all(files)
    assert parquet_rows(tmp_path)["item"].to_list() == ["a", "c"]


def test_a_file_that_another_worker_removes_before_it_is_locked_is_opened_again(
    files: FeedbackFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_lock = unfinished.take_lock
    removed: list[Path] = []

    def remove_first(handle: int, wait: bool) -> bool:
        if not removed:
            removed.extend(tmp_path.glob(".open-*"))
            removed[0].unlink()
        return take_lock(handle, wait)

    monkeypatch.setattr(module, "take_lock", remove_first)
    files.write("run-1", "clicked", ["a"], "v")
    convert_all(files)
    assert len(parquet_rows(tmp_path)) == 1


def test_a_line_that_is_being_written_is_not_reported(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    files.write(new_answer_id("run", "name", files.key), "shown", ["a", "b"], "v")
    assert files.file is not None
    files.file.write(b'{"time":17')
    assert json.loads(command("report", tmp_path, "--json").out)["total"]["shown"] == 2


def test_a_folder_without_feedback_is_an_input_error(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    done = command("report", tmp_path)
    assert done.code == 2
    assert "no feedback" in done.err
    files.write("run-1", "clicked", ["a"], "v")
    done = command("report", tmp_path)
    assert done.code == 2
    assert "'shown'" in done.err
