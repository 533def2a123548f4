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
from tests.helpers import RecordingProgress, small_shop, write_lines

pytest.importorskip("ray")
pytestmark = pytest.mark.process
SESSIONS = 200


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TASK_BYTES", 1000)


def write_days(folder: Path, header: str = "session,item,time,event") -> list[Path]:
    """A log in four files; every session has clicks in two of them."""
    clicks = small_shop(SESSIONS)
    shuffled = [clicks[(index * 7) % len(clicks)] for index in range(len(clicks))]
    files = []
    for number in range(4):
        rows = [
            f"{s},{i},{t},{'buy' if t % 3 else 'see'}"
            for s, i, t in shuffled[number::4]
        ]
        files.append(write_lines(folder / f"day-{number}.csv", [header, *rows]))
    return files


def both(source: Any, folder: Path, **options: Any) -> list[dict[str, bytes]]:
    found = []
    for engine in ("local", "ray"):
        out = folder / engine
        posrec.prepare(source, out=out, engine=engine, **options)
        found.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    return found


@pytest.mark.parametrize(
    "options", [{}, {"recipe": "paper", "fraction": "1/2", "target_events": "buy"}]
)
def test_ray_gives_what_this_process_gives(
    tmp_path: Path, cluster: None, options: dict[str, Any]
) -> None:
    write_days(tmp_path)
    here, by_ray = both(str(tmp_path / "day-*.csv"), tmp_path, **options)
    assert by_ray == here
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "local",
        "ray",
    ]


def test_messages_and_bad_lines_are_those_of_the_whole_log(
    tmp_path: Path, cluster: None
) -> None:
    files = write_days(tmp_path)
    for path in files[1:3]:
        path.write_text(path.read_text() + "x,,5,see\n")
    heard = {}
    for engine in ("local", "ray"):
        heard[engine] = RecordingProgress()
        posrec.prepare(
            files,
            out=tmp_path / engine,
            engine=engine,
            progress=heard[engine],
            bad_lines="skip",
        )
    assert "2 of 602 lines (0.33%) are broken" in "\n".join(heard["ray"].messages)
    told = [
        [text.replace("/local.", "/ray.") for text in one.messages]
        for one in heard.values()
    ]
    assert sorted(set(told[0])) == sorted(set(told[1]))
    lines = [
        (tmp_path / f"{engine}.bad-lines.jsonl").read_text()
        for engine in ("local", "ray")
    ]
    assert lines[0] == lines[1]
    with pytest.raises(posrec.InputError, match=r"2 lines are broken") as stopped:
        posrec.prepare(files, out=tmp_path / "no", engine="ray")
    assert "day-1.csv, line 152" in str(stopped.value)


def test_the_unit_of_times_is_that_of_the_first_file(
    tmp_path: Path, cluster: None
) -> None:
    """A file whose first time alone looks like seconds is read as milliseconds, as the log's first
    time says."""
    rows = [f"s{n // 2},i{n % 4},{1_700_000_000_000 + n}" for n in range(80)]
    files = [
        write_lines(tmp_path / "a.csv", ["session,item,time", *rows]),
        write_lines(
            tmp_path / "b.csv",
            ["session,item,time", "s90,i1,5", *(r.replace("s", "t") for r in rows)],
        ),
    ]
    here, by_ray = both(files, tmp_path)
    assert by_ray == here


def test_a_shops_log_by_hour(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that reads an hour of searches alone finds the columns of the log."""
    monkeypatch.setattr(reading, "TASK_BYTES", 1)
    here, by_ray = both(
        test_shop_log.write("jsonl", tmp_path),
        tmp_path,
        **test_shop_log.COLUMNS,
        events="view,cart",
    )
    assert by_ray == here
    assert b"crawler-0 (150 clicks)" in here["manifest.json"]


def die_once(marker: Path, real: Any, *arguments: Any, **options: Any) -> Any:
    """Kill the worker the first time that the task runs, when it has written everything."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return real(*arguments, **options)
    real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_nothing_is_lost_if_a_worker_dies(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_days(tmp_path)
    source = str(tmp_path / "day-*.csv")
    marker = tmp_path / "died"
    here = posrec.prepare(source, out=tmp_path / "local", engine="local")
    monkeypatch.setattr(
        reading, "read_files", partial(die_once, marker, reading.read_files)
    )
    by_ray = posrec.prepare(source, out=tmp_path / "ray", engine="ray")
    assert marker.exists()
    assert by_ray.fingerprint == here.fingerprint
