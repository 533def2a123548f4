"""Files of feedback: written row by row, converted to Parquet, read by prepare and report."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posrec.errors import InputError, RunFailed
from posrec.io import unfinished
from posrec.server.feedback import converting, writing as module
from posrec.server.feedback.answer_ids import KEY_FILE, is_signed, new_answer_id
from posrec.server.feedback.files import time_in_name
from posrec.server.feedback.writing import FeedbackFiles
from tests.helpers import command, listed
from tests.server.feedback.written import (
    FINGERPRINT,
    answer_of,
    convert_all,
    parquet_rows,
    write,
)
from tests.server.full_disk import largest_file


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


def test_only_the_items_of_an_answer_that_the_server_gave_are_written(
    tmp_path: Path,
) -> None:
    counted: list[tuple[str | None, str, int]] = []
    files = FeedbackFiles(tmp_path, observe=lambda *call: counted.append(call))
    marked = [("old", False), ("new é", True)]
    answer = new_answer_id(FINGERPRINT, "night-1", files.key, marked)
    claimed = ["old", "new é", "old", *(f"not shown {number}" for number in range(50))]
    assert files.write(answer, "shown", claimed) == 2
    assert files.write(answer, "bought", ["not shown 1"], value=1e9) == 0
    assert files.write(answer[:-1] + "!", "clicked", ["old"]) == 0
    convert_all(files)
    rows = parquet_rows(tmp_path)
    found = rows.select("event", "item", "rank", "explored").rows()
    assert found == [("shown", "old", 1, False), ("shown", "new é", 2, True)]
    assert set(rows["answer"]) == {answer[: len(FINGERPRINT) + 25]}  # without its end
    assert counted == [
        ("night-1", "shown", 2),
        (None, "shown", 51),
        (None, "bought", 1),
        (None, "clicked", 1),
    ]


def test_the_rows_of_a_request_have_a_bound(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    """Each of a thousand rows repeats the ids, and a control character takes six bytes there."""
    items = [f"i{number}" for number in range(1000)]
    answer = answer_of(files, *items)
    with pytest.raises(InputError, match="MB"):
        files.write(answer, "shown", items, "\x01" * 1000, "\x01" * 1000)
    assert listed(tmp_path) == [KEY_FILE]
    assert files.write(answer, "shown", items, "visit-7", "anna") == 1000


def test_feedback_is_readable_by_its_owner_alone(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    for _ in range(2):
        modes = [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()]
        assert set(modes) == {0o600}
        write(files, "shown", "a")
        convert_all(files)


def test_prepare_reads_feedback(tmp_path: Path) -> None:
    clock = iter(1_700_000_000 + 60.0 * n for n in range(10_000))
    files = FeedbackFiles(tmp_path / "feedback", lambda: next(clock))
    for visit in range(40):
        items = [f"i{(visit + step) % 4}" for step in range(3)]
        answer = answer_of(files, *items)
        files.write(answer, "shown", items, f"v{visit}")
        for item in items:
            files.write(answer, "clicked", [item], f"v{visit}")
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
    with ThreadPoolExecutor(4) as threads:
        for number in range(200):
            threads.submit(write, files, "shown", f"i{number}", "i")
    convert_all(files)
    items = [*(f"i{number}" for number in range(200)), *["i"] * 200]
    assert sorted(parquet_rows(tmp_path)["item"]) == sorted(items)


def test_a_file_becomes_a_parquet_file_by_its_size_and_by_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000.0
    files = FeedbackFiles(tmp_path, lambda: now)
    # The file is old; or the clock was set back, and the file would stay open for long.
    for passed in (module.ROTATE_SECONDS, -module.ROTATE_SECONDS):
        write(files, "shown", "x")
        files.convert_files()
        assert not list(tmp_path.glob("*.parquet"))
        now += passed
        files.convert_files()
        parquet_rows(tmp_path)
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
    monkeypatch.setattr(module, "MOST_FILE_BYTES", 700)
    answer = answer_of(files, "a", "b")
    for _ in range(2):  # the second time into another file
        files.write(answer, "shown", ["a", "b"])
    sizes = [path.stat().st_size for path in tmp_path.glob(".open-*")]
    assert len(sizes) == 2
    assert max(sizes) <= 700
    files.convert_files()
    rows = parquet_rows(tmp_path).rows(named=True)
    assert len(rows) == 2
    row = rows[1]
    assert (row["time"], row["event"]) == (1_700_000_000_000, "shown")
    assert (row["item"], row["rank"]) == ("b", 2)
    assert row["session"] == row["answer"]
    assert answer.startswith(row["answer"])
    assert (row["run"], row["name"]) == (FINGERPRINT, "night-1")
    assert (row["visitor"], row["value"], row["explored"]) == (None, None, False)


def test_a_file_that_fails_twice_is_set_aside_and_a_full_disk_does_not_count(
    files: FeedbackFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows can still be erased, and a new process converts it once it can."""
    codes = iter([converting.DISK_FAILED, -9, -9])

    def fail(path: Path, handle: int) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], next(codes), stderr="")

    write(files, "shown", "a", "b", session="anna")
    write(files, "shown", "c", session="bert")
    begun = time_in_name(files.began)
    left = []
    with monkeypatch.context() as failing:
        failing.setattr(converting, "run_conversion", fail)
        for _ in range(4):
            files.convert_files(also_recent=True)
            (name,) = set(listed(tmp_path)) - {KEY_FILE}
            left.append(name.count(converting.TRIED))
    assert left == [0, 1, 0, 0]
    assert next(codes, None) is None
    assert name.startswith(f".failed-{begun}")
    done = command("forget", "--visitor", "anna", "--feedback", tmp_path)
    assert "2 rows" in done.out
    (tmp_path / name).rename(tmp_path / name.replace("failed", "open"))
    files.convert_files()
    assert parquet_rows(tmp_path)["session"].to_list() == ["bert"]


def test_what_a_killed_worker_left_behind_is_converted_and_what_is_in_use_is_not(
    tmp_path: Path,
) -> None:
    alive = tmp_path / "alive"
    dead = tmp_path / "dead"
    in_use = FeedbackFiles(alive)  # holds the lock on its file
    write(in_use, "clicked", "a")
    (open_file,) = alive.glob(".open-*")
    dead.mkdir()
    shutil.copy(open_file, dead)
    os.mkfifo(dead / ".open-pipe.jsonl")  # that nobody writes to
    with (dead / open_file.name).open("ab") as file:
        file.write("{é\n".encode("latin-1"))  # not UTF-8
        file.write(b'{"time": 1, "sess')  # cut off in the middle of a row
    FeedbackFiles(dead).convert_files()
    FeedbackFiles(alive).convert_files()
    assert len(parquet_rows(dead)) == 1
    assert listed(alive) == [KEY_FILE, open_file.name]


def test_a_full_disk_takes_all_rows_of_a_request_or_none(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    write(files, "clicked", "a")
    (open_file,) = tmp_path.glob(".open-*")
    room = open_file.stat().st_size + 1
    less_than_a_buffer = ["b"]
    cut_in_a_character = ["é" * 1000] * 40
    for items in (less_than_a_buffer, cut_in_a_character):
        with largest_file(room), pytest.raises(RunFailed, match="can't be written"):
            write(files, "clicked", *items)
    write(files, "clicked", "c")
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
    write(files, "clicked", "a")
    convert_all(files)
    assert len(parquet_rows(tmp_path)) == 1


def test_a_line_that_is_being_written_is_not_reported(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    write(files, "shown", "a", "b")
    assert files.file is not None
    files.file.write(b'{"time":17')
    assert json.loads(command("report", tmp_path, "--json").out)["total"]["shown"] == 2


def test_a_folder_without_feedback_is_an_input_error(
    files: FeedbackFiles, tmp_path: Path
) -> None:
    done = command("report", tmp_path)
    assert done.code == 2
    assert "no feedback" in done.err
    write(files, "clicked", "a")
    done = command("report", tmp_path)
    assert done.code == 2
    assert "'shown'" in done.err
