"""Broken lines: reported together, or left out, counted and written to a file; the same for every
format."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posrec
from posrec.data.source import blocks
from posrec.data.source.readers import clicks
from posrec.errors import InputError
from posrec.progress import SilentProgress
from tests.faults.refusals import (
    EVENTS,
    GOOD,
    HEADER,
    JSONL,
    OTTO,
    SESSIONS,
    VIEWS,
    YOOCHOOSE,
)
from tests.helpers import RecordingProgress, listed, small_shop, write_lines, write_log

# format -> (lines that are not a click, good lines, broken lines of every kind)
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "csv": ([HEADER], GOOD, ["s1,i1,yesterday", "s1,i1", "s1,i1,1700000000000,x", "s1,,1700000000000",
                             ",i1,1700000000000", "s1,-1,1700000000000", 's1,5" pipe,1700000000000', "x"]),
    "tsv": ([HEADER.replace(",", "\t")], [line.replace(",", "\t") for line in GOOD], ["s1\ti1\tsoon", "s1", "s1\ti1"]),
    "jsonl": ([], JSONL, ["{", "[1]", "7", '{"item_id": "i1", "timestamp": 1700000000000}', '"text"',
                          '{"session_id": "s1", "item_id": 1.5, "timestamp": 1700000000000}',
                          '{"session_id": "s1", "item_id": ["i1"], "timestamp": 1700000000000}',
                          '{"session_id": "s1", "item_id": {"id": 1}, "timestamp": 1700000000000}',
                          '{"session_id": "s1", "item_id": "i1", "timestamp": "soon"}',
                          '{"session_id": "s1", "item_id": "i1", "timestamp": 1e400}',
                          '{"session_id": "s1", "item_id": "i1"}', '{"session_id": -1, "item_id": 1, "timestamp": 1}']),
    "yoochoose": ([], YOOCHOOSE, ["5,2014-04-31T10:00:00.000Z,1,0", "5,2014-04-30T10:00:00.000Z,,0", "5"]),
    "diginetica": ([VIEWS[0]], VIEWS[1:], ["1;NA;1;5;soon", "1;NA;1;x;2016-05-09", "1;NA;1"]),
    "retailrocket": ([EVENTS[0]], EVENTS[1:], ["x,1,view,2,", "5,1,view,-2,", "5,1,view"]),
    "otto": ([], OTTO, ["{", '{"session": 1}',
              '{"session":90,"events":[{"aid":1,"ts":5,"type":"clicks"},{"aid":-1,"ts":6}]}',
              '{"session": 1, "events": [{"aid": 1.5, "ts": 1, "type": "clicks"}]}',
              '{"session": 1, "events": [{"aid": -1, "ts": 1, "type": "clicks"}]}']),
    "sessions": ([], SESSIONS, ["4 -5", "-1 -2 3"]),
}  # fmt: skip


def prepared(
    log: Path, format: str, out: Path, progress: Any = None, **options: Any
) -> posrec.PreparedDataset:
    return posrec.prepare(
        log,
        format,
        out,
        overwrite=True,
        progress=progress or SilentProgress(),
        **options,
    )


Clean = Callable[[str], posrec.PreparedDataset]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The dataset of the good lines of a format."""
    folder = tmp_path_factory.mktemp("clean")

    @functools.cache
    def of(format: str) -> posrec.PreparedDataset:
        log = write_lines(folder / format, [*CASES[format][0], *CASES[format][1]])
        return prepared(log, format, folder / f"{format}-data")

    return of


@pytest.mark.parametrize("format", CASES)
@settings(max_examples=12)
@given(data=st.data(), size=st.sampled_from([32 << 20, 150]))
def test_skipping_gives_what_the_good_lines_give(
    tmp_path: Path, clean: Clean, format: str, data: st.DataObject, size: int
) -> None:
    places = st.tuples(
        st.integers(0, len(CASES[format][1])), st.sampled_from(CASES[format][2])
    )
    check_skipping(
        tmp_path,
        clean,
        format,
        data.draw(st.lists(places, min_size=1, max_size=6)),
        size,
    )


@pytest.mark.parametrize("format", CASES)
def test_skipping_all_of_them_at_either_end(
    tmp_path: Path, clean: Clean, format: str
) -> None:
    """A broken line must decide nothing for the others, such as the unit of the times, even if it
    is the first."""
    _, good, bad = CASES[format]
    for places in [[(0, line)] for line in bad] + [[(len(good), line) for line in bad]]:
        check_skipping(tmp_path, clean, format, places, 150)


def check_skipping(
    tmp_path: Path, clean: Clean, format: str, places: list[tuple[int, str]], size: int
) -> None:
    top, good, bad = CASES[format]
    lines = list(good)
    for place, line in sorted(places, key=lambda pair: -pair[0]):
        lines.insert(place, line)
    # A quote in the middle of a field joins the line with a later one, which is then lost too; one
    # of them is enough.
    if sum('"' in line for _, line in places if format == "csv") > 1:
        return
    log = write_lines(tmp_path / "log", [*top, *lines])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        patch.setattr(clicks, "RECORDS_BYTES", 100)
        found = prepared(
            log, format, tmp_path / "b", bad_lines="skip", bad_lines_limit=0.9
        )
    written = [
        json.loads(line)
        for line in (tmp_path / "b.bad-lines.jsonl").read_text().splitlines()
    ]
    expected = [
        (number, line)
        for number, line in enumerate([*top, *lines], start=1)
        if line in bad
    ]
    assert sorted((line["line"], line["text"]) for line in written) == expected
    assert found.manifest["log"]["bad_lines"] == len(expected)
    if format != "sessions":  # there the time of a session is its line, which moves
        assert found.fingerprint == clean(format).fingerprint
    assert found.train.items.tolist() == clean(format).train.items.tolist()


def broken_log(path: Path, broken: int, sessions: int = 300) -> Path:
    lines = [
        HEADER,
        *(f"{session},{item},{time}" for session, item, time in small_shop(sessions)),
    ]
    return write_lines(
        path, [*lines, *(f"s{number},i1,never {number}" for number in range(broken))]
    )


def test_stopping_reports_the_first_ten_at_once(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 30)
    with pytest.raises(InputError) as refused:
        prepared(log, "csv", tmp_path / "out")
    first, *others = str(refused.value).splitlines()
    assert first.startswith("at least 10 lines are broken")
    assert "--bad-lines skip" in first
    assert others == [
        f"  {log}, line {902 + n}: 'never {n}' in column 'timestamp' is not a time"
        for n in range(10)
    ]
    with pytest.raises(InputError, match="3 lines are broken"):
        prepared(broken_log(tmp_path / "a.csv", 3), "csv", tmp_path / "out")
    assert listed(tmp_path) == ["a.csv"]


def test_skipping_counts_and_shows_the_first_few(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 5)
    progress = RecordingProgress()
    prepared(log, "csv", tmp_path / "out", progress, bad_lines="skip")
    (message,) = [text for text in progress.messages if "broken" in text]
    assert message.splitlines() == [
        "5 of 905 lines (0.55%) are broken and were left out; the first:",
        *(
            f"  {log}, line {902 + n}: 'never {n}' in column 'timestamp' is not a time"
            for n in range(3)
        ),
    ]
    assert (
        f"the lines that were left out are in {tmp_path / 'out.bad-lines.jsonl'}"
        in progress.messages
    )
    assert json.loads(
        (tmp_path / "out.bad-lines.jsonl").read_text().splitlines()[4]
    ) == {
        "file": str(log),
        "line": 906,
        "reason": "'never 4' in column 'timestamp' is not a time",
        "text": "s4,i1,never 4",
    }


def test_more_than_one_percent_stops_unless_a_limit_is_given(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 10)
    with pytest.raises(InputError) as refused:
        prepared(log, "csv", tmp_path / "out", bad_lines="skip")
    assert str(refused.value).startswith(
        "10 of 910 lines (1.10%) are broken, more than 1.00%"
    )
    assert "a.csv, line 911" in str(refused.value)
    assert listed(tmp_path) == ["a.csv"]
    prepared(log, "csv", tmp_path / "out", bad_lines="skip", bad_lines_limit=0.02)
    assert listed(tmp_path) == ["a.csv", "out", "out.bad-lines.jsonl"]
    data = prepared(broken_log(log, 9, 297), "csv", tmp_path / "out", bad_lines="skip")
    assert data.manifest["log"]["bad_lines"] == 9  # of 900: not more than 1 %


def test_the_file_of_an_earlier_run_does_not_stay(tmp_path: Path) -> None:
    prepared(
        broken_log(tmp_path / "a.csv", 1), "csv", tmp_path / "out", bad_lines="skip"
    )
    assert (tmp_path / "out.bad-lines.jsonl").exists()
    prepared(
        broken_log(tmp_path / "a.csv", 0), "csv", tmp_path / "out", bad_lines="skip"
    )
    assert listed(tmp_path) == ["a.csv", "out"]


def test_text_that_is_not_utf8_is_a_broken_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop(100))
    log.write_bytes(log.read_bytes() + "s1,größe,1700000000000\n".encode("latin-1"))
    data = prepared(log, "csv", tmp_path / "out", bad_lines="skip")
    assert data.manifest["counts"]["clicks"] == 300
    assert (
        json.loads((tmp_path / "out.bad-lines.jsonl").read_text())["reason"]
        == "not UTF-8 text"
    )


def test_rows_of_a_table(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [
        *small_shop(100),
        ("s1", None, 1),
        (None, "i1", 2),
        ("s1", "-1", 3),
    ]
    table = pl.DataFrame(rows, schema=["session", "item", "time"], orient="row")
    with pytest.raises(InputError, match="3 lines are broken"):
        posrec.prepare(table, out=tmp_path / "out")
    data = posrec.prepare(table, out=tmp_path / "out", bad_lines="skip")
    assert data.manifest["counts"]["clicks"] == 300
    written = [
        json.loads(line)
        for line in (tmp_path / "out.bad-lines.jsonl").read_text().splitlines()
    ]
    assert [(line["row"], line["reason"]) for line in written] == [
        (301, "the item (column 'item') is missing"),
        (302, "the session (column 'session') is missing"),
        (303, "the item (column 'item') is -1, and an id can't be negative"),
    ]


def test_both_parts_of_an_existing_split(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.txt", ["1 2 3"] * 200 + ["1 -1"])
    test = write_lines(tmp_path / "test.txt", ["1 2 3"] * 200 + ["-1 1"])
    prepared(train, "sessions", tmp_path / "out", test=test, bad_lines="skip")
    lines = [
        json.loads(line)
        for line in (tmp_path / "out.bad-lines.jsonl").read_text().splitlines()
    ]
    assert [(Path(line["file"]).name, line["line"]) for line in lines] == [
        ("train.txt", 201),
        ("test.txt", 201),
    ]
