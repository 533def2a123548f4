"""Feedback: over a socket into Parquet files, which `posrec prepare` and `posrec report` read."""

import asyncio
import json
import re
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posrec.errors import InputError, RunFailed
from posrec.io.unfinished import locked
from posrec.server.feedback import writing as module
from posrec.server.feedback.answer_ids import KEY_FILE, is_signed, new_answer_id
from posrec.server.feedback.erasing import erase_visitors
from posrec.server.feedback.files import COLUMNS
from posrec.server.feedback.writing import FeedbackFiles, convert_and_close
from posrec.server.routes import Routes
from posrec.server.schemas import FeedbackRequest
from posrec.server.service import Service
from posrec.server.settings import ServerSettings
from tests.helpers import command, listed
from tests.server.server_process import Server, serving, until

pytest.importorskip("granian")


def convert_all(files: FeedbackFiles) -> None:
    for file in files.take_files(also_recent=True):
        convert_and_close(file)


def give(server: Server, answer: Any, event: Any, items: Any, **more: Any) -> int:
    body = {"answer": answer, "event": event, "items": items, **more}
    return server.ask("POST", "/v1/feedback", body).status


def test_from_an_answer_to_a_report(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    with serving(trained, "--feedback", folder) as server:
        answers = [server.recommend(f"i{n}", k=4).json() for n in range(5)]
        for visit, answer in enumerate(answers):
            shown = [one["item"] for one in answer["items"]]
            assert (
                give(
                    server,
                    answer["id"],
                    "shown",
                    shown,
                    session=f"v{visit}",
                    visitor="anna",
                )
                == 202
            )
            assert (
                give(server, answer["id"], "clicked", shown[:1], session=f"v{visit}")
                == 202
            )
        first = [answers[0]["items"][0]["item"]]
        assert give(server, answers[0]["id"], "carted", first, session="v0") == 202
        assert (
            give(server, answers[0]["id"], "bought", first, session="v0", value=12.5)
            == 202
        )
        assert give(server, answers[0]["id"], "clicked", ["zz"]) == 202
        forged = answers[0]["id"][:-1] + ("0" if answers[0]["id"][-1] != "0" else "1")
        assert give(server, forged, "shown", ["i1"]) == 202
        for wrong in (
            {"event": "seen"},
            {"items": []},
            {"answer": ""},
            {"rank": 1},
            {"value": 2},
            {"visitor": ""},
        ):
            assert (
                give(
                    server,
                    **{"answer": "a", "event": "shown", "items": ["i1"], **wrong},
                )
                == 422
            )
        assert give(server, "a", "bought", ["i1", "i2"], value=2) == 422
        while_serving = json.loads(command("report", folder, "--json").out)
    (file,) = folder.glob("*.parquet")  # written when the server stopped
    assert listed(folder) == [KEY_FILE, file.name]
    rows = pl.read_parquet(file)
    assert rows.columns == list(COLUMNS)
    assert len(rows) == 5 * 5 + 4
    found = json.loads(command("report", folder, "--json").out)
    assert found == while_serving
    assert [
        (one["group"], one["answers"], one["clicks"], one["purchases"])
        for one in found["by_rank"]
    ] == [
        ("1", 5, 5, 1),
        *((rank, 5, 0, 0) for rank in "234"),
    ]
    (run,) = found["by_run"]
    assert (run["group"], run["fingerprints"]) == (trained.name, [answer["run"]])
    counts = [
        run[name]
        for name in (
            "visitors",
            "answers",
            "shown",
            "clicks",
            "carts",
            "purchases",
            "value",
        )
    ]
    assert counts == [1, 5, 20, 5, 1, 1, 12.5]
    assert run["ratios"]["clicks"] == {"mean": 1.0, "interval": None}
    assert (found["total"]["clicks"], found["unmatched"], found["unsigned"]) == (
        5,
        1,
        1,
    )
    table = command("report", folder)
    assert (table.code, "12.50" in table.out, "Not counted: 1 rows" in table.out) == (
        0,
        True,
        True,
    )


def test_a_split_is_reported_by_the_names_of_the_runs(
    trained: Path, counted: Path, tmp_path: Path
) -> None:
    """Nine in ten visitors of the second run click, and one in ten of the first."""
    folder = tmp_path / "feedback"
    names = [trained.name, counted.name]
    with serving(trained, counted, "--feedback", folder) as server:
        runs = {
            one["fingerprint"]: one["name"]
            for one in server.ask("GET", "/v1/run").json()["split"]
        }
        answered = dict.fromkeys(names, 0)
        for number in range(80):
            answer = server.recommend("i1", k=2, split_by=f"visitor-{number}").json()
            name = runs[answer["run"]]
            shown = [one["item"] for one in answer["items"]]
            answered[name] += 1
            give(server, answer["id"], "shown", shown, visitor=f"visitor-{number}")
            if (number % 10 == 0) is (name == names[0]):
                give(
                    server,
                    answer["id"],
                    "clicked",
                    shown[:1],
                    visitor=f"visitor-{number}",
                )
        shown_answers = {
            name: server.metric(f'posrec_feedback_total{{event="shown",run="{name}"}}')
            for name in names
        }
        assert shown_answers == answered
        assert answered == {
            name: server.metric(f'posrec_answers_total{{run="{name}"}}')
            for name in names
        }
    assert f"{names[1]} is better than {names[0]}: " in command("report", folder).out
    assert command("report", folder, "--by", "day").code == 0
    assert command("report", folder, "--by", "week").code == 2


def test_the_key_stays_with_the_folder(tmp_path: Path) -> None:
    key = FeedbackFiles(tmp_path).key
    assert FeedbackFiles(tmp_path).key == key != FeedbackFiles(tmp_path / "other").key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(InputError, match="is no key"):
        FeedbackFiles(tmp_path)
    with pytest.raises(InputError, match="can't be written"):
        FeedbackFiles(tmp_path / KEY_FILE)


def test_only_whole_ids_of_the_server_are_signed() -> None:
    key = bytes(32)
    other = bytes(31) + b"1"
    answer = new_answer_id("5f0c9e1b7a42", "night-1", key)
    assert is_signed(answer, key)
    assert not any(
        is_signed(one, key)
        for one in (answer[:-1], answer[1:], "a" + answer, "", "é", "5f0c9e1b7a42-1")
    )
    assert not is_signed(answer, other)
    assert not is_signed(new_answer_id("5f0c9e1b7a42", "night-1", None), key)


def test_the_id_of_an_answer_says_which_items_were_explored(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    answer = new_answer_id("5f0c9e1b7a42", "night-1", files.key, ["new é", "newer"])
    assert is_signed(answer, files.key)
    files.write(answer, "shown", ["old", "new é", "newer"], None)
    files.write(answer, "clicked", ["newer"], None)
    files.write(
        answer[:-1] + "!", "clicked", ["newer"], None
    )  # an answer that the server did not give
    files.write(
        new_answer_id("5f0c9e1b7a42", "night-1", files.key), "clicked", ["newer"], None
    )
    convert_all(files)
    (file,) = tmp_path.glob("*.parquet")
    assert pl.read_parquet(file)["explored"].to_list() == [
        False,
        True,
        True,
        True,
        False,
        False,
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
    options = (
        "--format",
        "parquet",
        "--events",
        "clicked",
        "--out",
        tmp_path / "shop",
        "--no-test",
    )
    done = command("prepare", f"{tmp_path}/feedback/*.parquet", *options)
    assert done.code == 0, done.err
    counted = json.loads(command("stats", tmp_path / "shop", "--json").out)
    assert (counted["train_sessions"], counted["items"]) == (40, 4)


def test_many_rows_are_written_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def write(
        files: FeedbackFiles, answer: str, event: str, items: list[str], *more: object
    ) -> int:
        threads.append(threading.current_thread().name)
        return len(items)

    monkeypatch.setattr(FeedbackFiles, "write", write)
    handler = Routes(Service(ServerSettings(("run",), feedback=str(tmp_path)))).feedback
    for items in (20, 1000):
        request = FeedbackRequest(
            answer="a", event="shown", items=[f"i{number}" for number in range(items)]
        )
        assert asyncio.run(handler(data=request)).written == items
    assert [name.startswith("posrec-background") for name in threads] == [False, True]


def test_rows_of_several_threads_are_all_written(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda number: files.write(f"a{number}", "shown", ["i1", "i2"]),
                range(200),
            )
        )
    convert_all(files)
    rows = pl.concat([pl.read_parquet(path) for path in tmp_path.glob("*.parquet")])
    assert sorted(rows["answer"]) == sorted([f"a{number}" for number in range(200)] * 2)


def test_a_file_becomes_a_parquet_file_by_its_rows_and_by_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROTATE_ROWS", 4)
    now = [1_700_000_000.0]
    files = FeedbackFiles(tmp_path, lambda: now[0])
    for passed in (
        module.ROTATE_SECONDS,
        -module.ROTATE_SECONDS,
    ):  # old, or the clock is set back: it would stay open
        files.write("run-1", "shown", ["x"])
        assert not files.take_files()
        now[0] += passed
        (old,) = files.take_files()
        old.close()
    files.write("run-1", "shown", ["a", "b"])
    files.write("run-1", "shown", ["a", "b"])
    files.write("run-1", "shown", ["c"])  # into another file
    (full,) = files.take_files()
    convert_and_close(full)
    (file,) = tmp_path.glob("feedback-*.parquet")
    rows = pl.read_parquet(file).rows()
    assert len(rows) == 4
    assert rows[1] == (
        *(1_700_000_000_000, "run-1", "b", "shown", 2, "run-1", "run", False),
        *(None, None, None, False),
    )


def test_rows_that_can_t_be_converted_stay_and_the_next_start_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, rows: pl.DataFrame) -> None:
        raise OSError("No space left on device")

    files = FeedbackFiles(tmp_path)
    files.write("run-1", "shown", ["a", "b"], None)
    with monkeypatch.context() as changed:
        changed.setattr(module, "replace_parquet", full)
        convert_all(files)
    assert not list(tmp_path.glob("*.parquet"))
    files.write("run-1", "clicked", ["a"], None)  # goes on, in another file
    FeedbackFiles(tmp_path).convert_leftovers()
    assert [len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")] == [2]
    convert_all(files)
    assert sorted(len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")) == [
        1,
        2,
    ]


def test_what_a_killed_worker_left_behind_is_converted_and_what_is_in_use_is_not(
    tmp_path: Path,
) -> None:
    alive = FeedbackFiles(tmp_path / "alive")
    alive.write("run-1", "clicked", ["a"], "v")
    (open_file,) = (tmp_path / "alive").glob(".open-*")
    (tmp_path / "dead").mkdir()
    left = tmp_path / "dead" / open_file.name
    shutil.copy(open_file, left)
    with left.open("ab") as file:
        file.write("{é\n".encode("latin-1"))  # not UTF-8
        file.write(b'{"time": 1, "sess')  # cut off in the middle of a row
    FeedbackFiles(tmp_path / "dead").convert_leftovers()
    FeedbackFiles(tmp_path / "alive").convert_leftovers()
    assert [
        len(pl.read_parquet(one)) for one in (tmp_path / "dead").glob("*.parquet")
    ] == [1]
    assert listed(tmp_path / "alive") == [KEY_FILE, open_file.name]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a disk that is full."""
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
    for items in (
        ["b"],
        ["é" * 1000] * 40,
    ):  # less than a buffer, and cut off in the middle of a character
        with (
            largest_file(room),
            pytest.raises(RunFailed, match="feedback can't be written"),
        ):
            files.write("run-1", "clicked", items, "v")
    files.write("run-1", "clicked", ["c"], "v")
    convert_all(files)
    (found,) = tmp_path.glob("*.parquet")
    assert pl.read_parquet(found)["item"].to_list() == ["a", "c"]


def test_a_file_that_another_worker_removes_before_it_is_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FeedbackFiles(tmp_path)
    real = module.take_lock
    removed = []

    def take_lock(handle: int, wait: bool) -> bool:
        if not removed:
            removed.extend(tmp_path.glob(".open-*"))
            removed[0].unlink()
        return real(handle, wait)

    monkeypatch.setattr(module, "take_lock", take_lock)
    files.write("run-1", "clicked", ["a"], "v")
    convert_all(files)
    assert [len(pl.read_parquet(one)) for one in tmp_path.glob("*.parquet")] == [1]


def test_a_line_that_is_being_written_is_not_reported(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    files.write(new_answer_id("run", "name", files.key), "shown", ["a", "b"], "v")
    assert files.file is not None
    files.file.write(b'{"time":17')
    assert json.loads(command("report", tmp_path, "--json").out)["total"]["shown"] == 2


def test_a_folder_without_feedback_is_an_input_error(tmp_path: Path) -> None:
    done = command("report", tmp_path)
    assert (done.code, "holds no feedback" in done.err) == (2, True)
    FeedbackFiles(tmp_path).write("run-1", "clicked", ["a"], "v")
    done = command("report", tmp_path)
    assert (done.code, "no event 'shown'" in done.err) == (2, True)


def test_a_visitor_is_forgotten_while_the_server_writes(
    trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "feedback"
    store = f"sqlite:{tmp_path / 'sessions'}?timeout=60"
    for _ in range(2):  # the first server leaves a Parquet file
        with serving(
            trained, "--feedback", folder, "--session-store", store, "--log-requests"
        ) as server:
            for visitor in ("anna", "bert"):
                answer = server.ask(
                    "POST", f"/v1/sessions/{visitor}/click", {"item": "i3", "k": 2}
                ).json()
                shown = [one["item"] for one in answer["items"]]
                assert (
                    give(server, answer["id"], "shown", shown) == 202
                )  # without the visitor's id
                assert (
                    give(server, answer["id"], "clicked", shown[:1], session=visitor)
                    == 202
                )
            options = ("--feedback", folder, "--session-store", store)
            done = command("forget", "--visitor", "anna", *options)
            assert (done.code, re.findall(r"\d+", done.out)) == (0, ["1", "3", "1"]), (
                done.out
            )  # sessions, rows, files
            assert json.loads(command("report", folder, "--json").out)["unsigned"] == 0
            assert server.recommend(session_id="anna").json()["popular"]
            assert not server.recommend(session_id="bert").json()["popular"]
            answer = server.recommend("i3", k=1).json()  # the file is written on
            assert give(server, answer["id"], "shown", ["i3"], session="carla") == 202
            assert "anna" not in str(server.log)
        assert not any(
            b"anna" in path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file()
        )
    rows = pl.concat(map(pl.read_parquet, folder.glob("*.parquet")))
    assert "anna" not in rows["session"].to_list()
    assert rows["session"].to_list().count("bert") == 2
    assert len(rows) == 2 * (3 + 1)


def write_files(folder: Path, *visits: str) -> list[Path]:
    for place, visitors in enumerate(visits):
        files = FeedbackFiles(
            folder, lambda place=place: 1_700_000_000.0 + 86_400 * place
        )
        for visitor in visitors.split():
            files.write(f"run-{visitor}", "clicked", ["i1"], visitor)
        convert_all(files)
    return sorted(folder.glob("*.parquet"))


def test_only_files_with_the_visitor_are_replaced(tmp_path: Path) -> None:
    first, second, third = write_files(tmp_path, "anna bert anna", "bert", "anna dora")
    pl.read_parquet(third).with_columns(visitor=pl.lit("emil")).write_parquet(third)
    before = second.stat()
    assert erase_visitors(tmp_path, ["anna"]) == (3, 2)
    assert [
        pl.read_parquet(one)["session"].to_list() for one in (first, second, third)
    ] == [
        ["bert"],
        ["bert"],
        ["dora"],
    ]
    assert second.stat() == before
    assert erase_visitors(tmp_path, ["emil", "bert"]) == (3, 3)
    assert listed(tmp_path) == [KEY_FILE]  # a file without rows is deleted


def test_a_damaged_file_is_named_and_nothing_is_erased(tmp_path: Path) -> None:
    first, second = write_files(tmp_path, "anna", "anna")
    second.write_bytes(second.read_bytes()[:-10])
    done = command("forget", "--visitor", "anna", "--feedback", tmp_path)
    assert (done.code, f"{second} can't be read" in " ".join(done.err.split())) == (
        2,
        True,
    ), done.err
    assert len(pl.read_parquet(first)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "name where"),
        (("--feedback", "nowhere"), "nowhere does not exist"),
        (("--session-store", "sqlite:nowhere"), "no such file"),
    ],
)
def test_a_place_that_does_not_exist_is_an_input_error(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("forget", "--visitor", "anna", *options)
    assert (done.code, message in done.err) == (2, True), done.err
    assert listed(tmp_path) == []


def test_a_conversion_waits_until_a_visitor_is_forgotten(tmp_path: Path) -> None:
    files = FeedbackFiles(tmp_path)
    files.write("run-1", "clicked", ["i1"], "anna")
    converting = threading.Thread(target=convert_all, args=(files,))
    with locked(tmp_path):
        converting.start()
        time.sleep(0.1)
        assert list(tmp_path.glob("*.parquet")) == []
    converting.join()
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_files_older_than_asked_for_are_deleted_by_the_server(
    trained: Path, tmp_path: Path
) -> None:
    old, new = write_files(tmp_path, "anna", "bert")
    new = new.rename(
        new.with_name(f"feedback-{datetime.now(UTC):%Y%m%dT%H%M%S}-1-1.parquet")
    )
    other = Path(
        shutil.copy(old, tmp_path / "feedback-of-last-year.parquet")
    )  # not a name that the server gives
    with serving(trained, "--feedback", tmp_path, "--keep-feedback", "90d") as server:
        (line,) = until(lambda: server.said("old feedback deleted"))
    assert (line["files"], listed(tmp_path)) == (
        1,
        sorted([KEY_FILE, new.name, other.name]),
    )


def test_a_wrong_time_to_keep_feedback(trained: Path) -> None:
    assert (
        command("serve", trained, "--keep-feedback", "90d").code == 2
    )  # without --feedback
    assert (
        command("serve", trained, "--feedback", "f", "--keep-feedback", "long").code
        == 2
    )
