"""Preparing on a real local Ray cluster: the dataset of this process, also if workers die."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.data.prepare import reading
from tests.data.prepare import test_shop_log
from tests.data.prepare.test_engines import contents
from tests.data.source import test_mixed_logs
from tests.helpers import RecordingProgress, slowly, small_shop, write_lines

pytest.importorskip("ray")
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TASK_BYTES", 1000)


def write_days(folder: Path) -> list[Path]:
    """A log in four files; every session has clicks in two of them."""
    clicks = small_shop(200)
    shuffled = [clicks[(index * 7) % len(clicks)] for index in range(len(clicks))]
    files = []
    for number in range(4):
        lines = ["session,item,time,event"]
        for session, item, time in shuffled[number::4]:
            lines.append(f"{session},{item},{time},{'buy' if time % 3 else 'see'}")
        files.append(write_lines(folder / f"day-{number}.csv", lines))
    return files


def both(source: Any, folder: Path, **options: Any) -> list[dict[str, bytes]]:
    """The files of the dataset as this process prepares it, and as Ray does."""
    files = []
    for engine in ("local", "ray"):
        posrec.prepare(source, out=folder / engine, engine=engine, **options)
        files.append(contents(folder / engine))
    return files


@pytest.mark.parametrize(
    "options",
    [
        slowly({}),
        {"recipe": "paper", "fraction": "1/2", "target_events": "buy"},
    ],
)
def test_ray_gives_what_this_process_gives(
    tmp_path: Path, cluster: None, options: dict[str, Any]
) -> None:
    here, by_ray = both(write_days(tmp_path), tmp_path, **options)
    assert by_ray == here
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"local", "ray"}


def test_messages_and_bad_lines_are_those_of_the_whole_log(
    tmp_path: Path, cluster: None
) -> None:
    files = write_days(tmp_path)
    for path in files[1:3]:
        path.write_text(path.read_text() + "x,,5,see\n")
    messages = {}
    bad_lines = {}
    for engine in ("local", "ray"):
        progress = RecordingProgress()
        out = tmp_path / engine
        posrec.prepare(
            files, out=out, engine=engine, progress=progress, bad_lines="skip"
        )
        messages[engine] = {text.replace(str(out), "") for text in progress.messages}
        bad_lines[engine] = (tmp_path / f"{engine}.bad-lines.jsonl").read_text()
    assert "2 of 602 lines (0.33%) are broken" in "\n".join(messages["ray"])
    assert messages["local"] == messages["ray"]
    assert bad_lines["local"] == bad_lines["ray"]
    with pytest.raises(posrec.InputError, match=r"day-1\.csv, line 152"):
        posrec.prepare(files, out=tmp_path / "no", engine="ray")


@pytest.mark.slow
def test_the_unit_of_times_is_that_of_the_first_file(
    tmp_path: Path, cluster: None
) -> None:
    """A file whose first time looks like seconds is read in milliseconds, as the log begins."""
    header = "session,item,time"
    rows = [f"s{n // 2},i{n % 4},{1_700_000_000_000 + n}" for n in range(80)]
    others = [row.replace("s", "t") for row in rows]
    a = write_lines(tmp_path / "a.csv", [header, *rows])
    b = write_lines(tmp_path / "b.csv", [header, "s90,i1,5", *others])
    here, by_ray = both([a, b], tmp_path)
    assert by_ray == here


@pytest.mark.slow
def test_a_shops_log_by_hour(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that reads an hour of searches alone finds the columns of the log."""
    monkeypatch.setattr(reading, "TASK_BYTES", 1)
    log = test_shop_log.write("jsonl", tmp_path)
    here, by_ray = both(log, tmp_path, **test_shop_log.COLUMNS, events="view,cart")
    assert by_ray == here
    assert b"crawler-0 (150 clicks)" in here["manifest.json"]


@pytest.mark.slow
def test_a_mixed_log(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours with times in milliseconds, in several tasks, and a week with times in seconds."""
    monkeypatch.setattr(reading, "TASK_BYTES", 1)
    files = test_mixed_logs.write_both(tmp_path)
    here, by_ray = both(files, tmp_path, columns=test_mixed_logs.TABLES)
    assert by_ray == here
    assert posrec.load(tmp_path / "ray").manifest["steps"][0]["clicks"] == 180


def die_once(marker: Path, real: Any, *arguments: Any, **options: Any) -> Any:
    """Kill the worker when it has written everything, the first time."""
    result = real(*arguments, **options)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


@pytest.mark.slow
def test_nothing_is_lost_if_a_worker_dies(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "died"
    dying = partial(die_once, marker, reading.read_files)
    monkeypatch.setattr(reading, "read_files", dying)
    here, by_ray = both(write_days(tmp_path), tmp_path)
    assert marker.exists()
    assert by_ray == here
