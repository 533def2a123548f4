"""Feedback: over a socket into Parquet files, which `posrec prepare` and `posrec report` read."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import polars as pl
import pytest

from posrec.errors import InputError, RunFailed
from posrec.server import feedback as module
from posrec.server.feedback import KEY_FILE, FeedbackFiles, is_signed, new_answer_id
from tests.helpers import command, listed
from tests.server.server_process import Server, serving

pytest.importorskip("uvicorn")


def give(server: Server, answer: str, event: str, items: list[str], **more: object) -> int:
    body = {"answer": answer, "event": event, "items": items, **more}
    return server.ask("POST", "/v1/feedback", body).status


def test_from_an_answer_to_a_report(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    with serving(trained, "--feedback", folder) as server:
        answers = [server.recommend(f"i{n}", k=4).json() for n in range(5)]
        for visit, answer in enumerate(answers):
            shown = [one["item"] for one in answer["items"]]
            assert give(server, answer["id"], "shown", shown, session=f"v{visit}") == 202
            assert give(server, answer["id"], "clicked", shown[:1], session=f"v{visit}") == 202
        assert give(server, answers[0]["id"], "bought", [answers[0]["items"][0]["item"]], session="v0") == 202
        assert give(server, answers[0]["id"], "clicked", ["zz"]) == 202
        forged = answers[0]["id"].replace(answers[0]["id"][-1], "0" if answers[0]["id"][-1] != "0" else "1")
        assert give(server, forged, "shown", ["i1"]) == 202
        for wrong in ({"event": "seen"}, {"items": []}, {"answer": ""}, {"rank": 1}):
            body = {"answer": "a", "event": "shown", "items": ["i1"], **wrong}
            assert server.ask("POST", "/v1/feedback", body).status == 422
        run = server.ask("GET", "/v1/run").json()["fingerprint"]
        while_serving = json.loads(command("report", folder, "--json").out)
    (file,) = folder.glob("*.parquet")  # written when the server stopped
    assert listed(folder) == [KEY_FILE, file.name]
    rows = pl.read_parquet(file)
    assert rows.columns == ["time", "session", "item", "event", "rank", "answer", "run", "signed"]
    assert len(rows) == 5 * 5 + 3
    found = json.loads(command("report", folder, "--json").out)
    assert found == while_serving
    assert [(one["group"], one["shown"], one["clicked"], one["bought"]) for one in found["by_rank"]] == [
        ("1", 5, 5, 1),
        *((rank, 5, 0, 0) for rank in "234"),
    ]
    assert [(one["group"], one["shown"], one["rate"]) for one in found["by_run"]] == [(run, 20, 0.25)]
    assert (found["total"]["clicked"], found["unmatched"], found["unsigned"]) == (5, 1, 1)
    table = command("report", folder)
    assert (table.code, "25.00%" in table.out, "1 clicks or purchases" in table.out) == (0, True, True)
    assert "Not counted: 1 rows of answers that the server did not give." in table.out
    rows.drop("signed").write_parquet(file.with_name("feedback-0.parquet"))  # of a server that did not sign answers
    file.unlink()
    assert json.loads(command("report", folder, "--json").out)["total"]["shown"] == 21


def test_the_key_stays_with_the_folder(tmp_path: Path) -> None:
    """Workers and replicas have the same, also after a restart."""
    key = FeedbackFiles(tmp_path).key
    assert FeedbackFiles(tmp_path).key == key != FeedbackFiles(tmp_path / "other").key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(InputError, match="is no key; remove it"):
        FeedbackFiles(tmp_path)


def test_only_whole_ids_of_the_server_are_signed() -> None:
    key, other = bytes(32), bytes(31) + b"1"
    answer = new_answer_id("5f0c9e1b7a42", key)
    assert is_signed(answer, key)
    assert not any(is_signed(one, key) for one in (answer[:-1], answer[1:], "a" + answer, "", "é", "5f0c9e1b7a42-1"))
    assert not is_signed(answer, other)
    assert not is_signed(new_answer_id("5f0c9e1b7a42", None), key)


def test_prepare_reads_feedback(tmp_path: Path) -> None:
    clock = iter(1_700_000_000 + 60.0 * n for n in range(10_000))
    files = FeedbackFiles(tmp_path / "feedback", lambda: next(clock))
    for visit in range(40):
        items = [f"i{(visit + step) % 4}" for step in range(3)]
        files.write(f"run-{visit}", "shown", items, f"v{visit}")
        for item in items:
            files.write(f"run-{visit}", "clicked", [item], f"v{visit}")
    files.rotate()
    options = ("--format", "parquet", "--events", "clicked", "--out", tmp_path / "shop", "--no-test")
    done = command("prepare", f"{tmp_path}/feedback/*.parquet", *options)
    assert done.code == 0, done.err
    counted = json.loads(command("stats", tmp_path / "shop", "--json").out)
    assert (counted["train_sessions"], counted["items"]) == (40, 4)


def test_without_a_folder_feedback_is_not_found(plain_server: Server) -> None:
    answer = plain_server.ask("POST", "/v1/feedback", {"answer": "a", "event": "shown", "items": ["i1"]})
    assert (answer.status, "--feedback DIR" in answer.json()["error"]) == (404, True)


def test_files_rotate_by_rows_and_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROTATE_ROWS", 4)
    now = [1_700_000_000.0]
    files = FeedbackFiles(tmp_path, lambda: now[0])
    for _ in range(5):
        files.write("run-1", "shown", ["a", "b"], None)
    files.wait()
    assert len(list(tmp_path.glob("feedback-*.parquet"))) == 2
    files.rotate_if_due()
    files.wait()
    assert len(list(tmp_path.glob("feedback-*.parquet"))) == 2
    now[0] += module.ROTATE_SECONDS
    files.rotate_if_due()
    files.wait()
    assert [len(pl.read_parquet(one)) for one in sorted(tmp_path.glob("*.parquet"))] == [4, 4, 2]
    first = pl.read_parquet(min(tmp_path.glob("*.parquet"))).to_dicts()[1]
    assert tuple(first.values()) == (1_700_000_000_000, "run-1", "b", "shown", 2, "run-1", "run", False)
    files.write("run-1", "shown", ["a"], None)
    now[0] -= 86_400  # the clock is set back: the file would stay open for a day
    files.rotate_if_due()
    files.wait()
    assert len(list(tmp_path.glob("feedback-*.parquet"))) == 4


def test_rows_that_can_t_be_converted_stay_and_the_next_start_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError("No space left on device")

    files = FeedbackFiles(tmp_path)
    files.write("run-1", "shown", ["a", "b"], None)
    with monkeypatch.context() as changed:
        changed.setattr(module, "convert", full)
        files.rotate()
    assert not list(tmp_path.glob("*.parquet"))
    files.write("run-1", "clicked", ["a"], None)  # goes on, in another file
    FeedbackFiles(tmp_path)
    assert [len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")] == [2]
    files.rotate()
    assert sorted(len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")) == [1, 2]


def test_what_a_killed_worker_left_behind_is_converted_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    alive = FeedbackFiles(tmp_path / "alive")
    alive.write("run-1", "clicked", ["a"], "v")
    (open_file,) = (tmp_path / "alive").glob(".open-*")
    (tmp_path / "dead").mkdir()
    left = tmp_path / "dead" / open_file.name
    shutil.copy(open_file, left)
    with left.open("ab") as file:
        file.write("{é\n".encode("latin-1"))  # not UTF-8
        file.write(b'{"time": 1, "sess')  # cut off in the middle of a row
    FeedbackFiles(tmp_path / "dead")
    FeedbackFiles(tmp_path / "alive")
    assert [len(pl.read_parquet(one)) for one in (tmp_path / "dead").glob("*.parquet")] == [1]
    assert listed(tmp_path / "alive") == [KEY_FILE, open_file.name]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may become larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_takes_all_rows_of_a_request_or_none(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    files.write("run-1", "clicked", ["a"], "v")
    (open_file,) = tmp_path.glob(".open-*")
    room = open_file.stat().st_size + 1
    for items in (["b"], ["é" * 1000] * 40):  # less than a buffer, and cut off in the middle of a character
        with largest_file(room), pytest.raises(RunFailed, match="feedback can't be written"):
            files.write("run-1", "clicked", items, "v")
    files.write("run-1", "clicked", ["c"], "v")
    files.rotate()
    (found,) = tmp_path.glob("*.parquet")
    assert pl.read_parquet(found)["item"].to_list() == ["a", "c"]


def test_a_file_that_another_worker_removes_before_it_is_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real, removed = FeedbackFiles(tmp_path), module.fcntl.flock, []

    def flock(file: FileIO, how: int) -> None:
        if not removed:
            removed.append(file.name)
            Path(str(file.name)).unlink()
        real(file, how)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    files.write("run-1", "clicked", ["a"], "v")
    files.rotate()
    assert [len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")] == [1]


def test_a_file_in_place_of_the_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "feedback").write_text("")
    with pytest.raises(InputError, match="feedback can't be written into"):
        FeedbackFiles(tmp_path / "feedback")


def test_a_line_that_is_being_written_is_not_reported(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    files.write(new_answer_id("run", files.key), "shown", ["a", "b"], "v")
    assert files.file is not None
    files.file.write(b'{"time":17')
    assert json.loads(command("report", tmp_path, "--json").out)["total"]["shown"] == 2


def test_a_folder_without_feedback_is_an_input_error(tmp_path: Path) -> None:
    done = command("report", tmp_path)
    assert (done.code, "holds no feedback" in done.err) == (2, True)
    FeedbackFiles(tmp_path).write("run-1", "clicked", ["a"], "v")
    files = FeedbackFiles(tmp_path / "clicks")
    files.write("run-1", "clicked", ["a"], "v")
    files.rotate()
    done = command("report", tmp_path / "clicks")
    assert (done.code, "no event 'shown'" in done.err) == (2, True)
