"""Broken lines of every format: reported together, or left out, counted and written to a file."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import posrec
from posrec.data.source import blocks
from posrec.data.source.readers import clicks
from posrec.errors import InputError
from tests.data.reading import prepared
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
from tests.helpers import (
    RecordingProgress,
    frame,
    listed,
    small_shop,
    write_lines,
    write_log,
)


def tabs(lines: list[str]) -> list[str]:
    return [line.replace(",", "\t") for line in lines]


# Broken lines of every kind.
CSV = """\
s1,i1,yesterday
s1,i1
s1,i1,1700000000000,x
s1,,1700000000000
,i1,1700000000000
s1,-1,1700000000000
s1,5" pipe,1700000000000
x"""
JSON_EVENTS = """\
{
[1]
7
"text"
{"item_id": "i1", "timestamp": 1700000000000}
{"session_id": "s1", "item_id": 1.5, "timestamp": 1700000000000}
{"session_id": "s1", "item_id": ["i1"], "timestamp": 1700000000000}
{"session_id": "s1", "item_id": {"id": 1}, "timestamp": 1700000000000}
{"session_id": "s1", "item_id": "i1", "timestamp": "soon"}
{"session_id": "s1", "item_id": "i1", "timestamp": 1e400}
{"session_id": "s1", "item_id": "i1"}
{"session_id": -1, "item_id": 1, "timestamp": 1}"""
OTTO_SESSIONS = """\
{
{"session": 1}
{"session":90,"events":[{"aid":1,"ts":5,"type":"clicks"},{"aid":-1,"ts":6}]}
{"session": 1, "events": [{"aid": 1.5, "ts": 1, "type": "clicks"}]}
{"session": 1, "events": [{"aid": -1, "ts": 1, "type": "clicks"}]}"""
DATES = "5,2014-04-31T10:00:00.000Z,1,0 5,2014-04-30T10:00:00.000Z,,0 5"
# format -> (lines that are not a click, good lines, broken lines)
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "csv": ([HEADER], GOOD, CSV.splitlines()),
    "tsv": (tabs([HEADER]), tabs(GOOD), ["s1\ti1\tsoon", "s1", "s1\ti1"]),
    "jsonl": ([], JSONL, JSON_EVENTS.splitlines()),
    "yoochoose": ([], YOOCHOOSE, DATES.split()),
    "diginetica": (
        VIEWS[:1],
        VIEWS[1:],
        ["1;NA;1;5;soon", "1;NA;1;x;2016-05-09", "1;NA;1"],
    ),
    "retailrocket": (
        EVENTS[:1],
        EVENTS[1:],
        ["x,1,view,2,", "5,1,view,-2,", "5,1,view"],
    ),
    "otto": ([], OTTO, OTTO_SESSIONS.splitlines()),
    "sessions": ([], SESSIONS, ["4 -5", "-1 -2 3"]),
}


def skipped(folder: Path) -> list[dict[str, Any]]:
    """What was left out of a dataset."""
    path = folder.with_name(f"{folder.name}.bad-lines.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


Clean = Callable[[str], posrec.PreparedDataset]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The dataset of the good lines of a format."""
    folder = tmp_path_factory.mktemp("clean")

    @functools.cache
    def prepare_good(format: str) -> posrec.PreparedDataset:
        top, good, _ = CASES[format]
        log = write_lines(folder / format, [*top, *good])
        return prepared(log, folder / f"{format}-data", format=format)

    return prepare_good


@pytest.mark.parametrize("format", CASES)
@settings(max_examples=6)
@given(data=st.data(), size=st.sampled_from([32 << 20, 150]))
def test_skipping_gives_what_the_good_lines_give(
    tmp_path: Path, clean: Clean, format: str, data: st.DataObject, size: int
) -> None:
    _, good, bad = CASES[format]
    inserts = st.tuples(st.integers(0, len(good)), st.sampled_from(bad))
    drawn = data.draw(st.lists(inserts, min_size=1, max_size=6))
    check_skipping(tmp_path, clean, format, drawn, size)


@pytest.mark.parametrize("format", CASES)
def test_skipping_all_of_them_at_either_end(
    tmp_path: Path, clean: Clean, format: str
) -> None:
    """A broken first line must not decide the unit of the times."""
    _, good, bad = CASES[format]
    for line in bad:
        check_skipping(tmp_path, clean, format, [(0, line)], 150)
    at_end = [(len(good), line) for line in bad]
    check_skipping(tmp_path, clean, format, at_end, 150)


def check_skipping(
    tmp_path: Path, clean: Clean, format: str, inserts: list[tuple[int, str]], size: int
) -> None:
    top, good, bad = CASES[format]
    lines = list(good)
    for index, line in sorted(inserts, key=lambda insert: -insert[0]):
        lines.insert(index, line)
    # A stray quote joins its line with a later one, which is lost too.
    if format == "csv" and sum('"' in line for _, line in inserts) > 1:
        return
    log = write_lines(tmp_path / "log", [*top, *lines])
    out = tmp_path / "b"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        patch.setattr(clicks, "RECORDS_BYTES", 100)
        options: dict[str, Any] = {"bad_lines": "skip", "bad_lines_limit": 0.9}
        data = prepared(log, out, format=format, **options)
    numbered = enumerate([*top, *lines], start=1)
    expected = [(number, line) for number, line in numbered if line in bad]
    assert sorted((line["line"], line["text"]) for line in skipped(out)) == expected
    assert data.manifest["log"]["bad_lines"] == len(expected)
    if format != "sessions":  # there the time of a session is its line, which moves
        assert data.fingerprint == clean(format).fingerprint
    assert data.train.items.tolist() == clean(format).train.items.tolist()


def broken_log(path: Path, broken: int, sessions: int = 300) -> Path:
    bad: Any = [(f"s{number}", "i1", f"never {number}") for number in range(broken)]
    return write_log(path, [*small_shop(sessions), *bad])


REPORT = (
    "  {} lines such as {}, line 902: 'never 0' in column 'timestamp' is not a time"
)


def test_stopping_reports_the_first_ten_at_once(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 30)
    with pytest.raises(InputError) as refused:
        prepared(log, tmp_path / "out")
    first, *others = str(refused.value).splitlines()
    assert first.startswith("at least 10 lines are broken")
    assert "--bad-lines skip" in first
    assert others == [REPORT.format(10, log)]
    with pytest.raises(InputError, match="3 lines are broken"):
        prepared(broken_log(tmp_path / "a.csv", 3), tmp_path / "out")
    assert listed(tmp_path) == ["a.csv"]


def test_skipping_counts_and_shows_the_first_few(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 5)
    progress = RecordingProgress()
    prepared(log, tmp_path / "out", progress, bad_lines="skip")
    (message,) = [text for text in progress.messages if "broken" in text]
    first, *others = message.splitlines()
    assert first.startswith("5 of 905 lines (0.55%) are broken")
    assert others == [REPORT.format(5, log)]
    assert str(tmp_path / "out.bad-lines.jsonl") in "".join(progress.messages)
    assert skipped(tmp_path / "out")[4] == {
        "file": str(log),
        "line": 906,
        "reason": "'never 4' in column 'timestamp' is not a time",
        "text": "s4,i1,never 4",
    }


def test_more_than_one_percent_stops_unless_a_limit_is_given(tmp_path: Path) -> None:
    log = broken_log(tmp_path / "a.csv", 10)
    with pytest.raises(InputError) as refused:
        prepared(log, tmp_path / "out", bad_lines="skip")
    assert "10 of 910 lines (1.10%) are broken, more than 1.00%" in str(refused.value)
    assert REPORT.format(10, log) in str(refused.value)
    assert listed(tmp_path) == ["a.csv"]
    prepared(log, tmp_path / "out", bad_lines="skip", bad_lines_limit=0.02)
    assert listed(tmp_path) == ["a.csv", "out", "out.bad-lines.jsonl"]
    data = prepared(broken_log(log, 9, 297), tmp_path / "out", bad_lines="skip")
    assert data.manifest["log"]["bad_lines"] == 9  # of 900: not more than 1 %


def test_broken_lines_of_one_cause_are_one_line_of_the_message(tmp_path: Path) -> None:
    lines = [
        "session,user,item,time",
        *(f"s{n // 2},,i{n % 3},{1_700_000_000 + n}" for n in range(3000)),
        *(f",,i{n},1700000000" for n in range(12)),
        *(f"s1,,-{n},1700000000" for n in (5, 7)),
        "s1,,i1,gestern",
    ]
    log = write_lines(tmp_path / "a.csv", lines)
    progress = RecordingProgress()
    options: dict[str, Any] = {"session_column": "session", "user_column": "user"}
    prepared(log, tmp_path / "out", progress, bad_lines="skip", **options)
    (message,) = [text for text in progress.messages if "are broken" in text]
    assert message.splitlines() == [
        "15 of 3,015 lines (0.50%) are broken and were left out:",
        f"  12 lines such as {log}, line 3002: no user and no session (columns 'user', 'session')",
        f"  2 lines such as {log}, line 3014: the item (column 'item') is -5, and an id can't be "
        "negative",
        f"  {log}, line 3016: 'gestern' in column 'time' is not a time",
    ]


def test_the_file_of_an_earlier_run_does_not_stay(tmp_path: Path) -> None:
    for broken in (1, 0):
        log = broken_log(tmp_path / "a.csv", broken)
        prepared(log, tmp_path / "out", bad_lines="skip")
        assert (tmp_path / "out.bad-lines.jsonl").exists() == (broken > 0)


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "out.bad-lines.jsonl").symlink_to(mine)
    prepared(broken_log(tmp_path / "a.csv", 1), tmp_path / "out", bad_lines="skip")
    assert mine.read_text() == "mine"
    assert len(skipped(tmp_path / "out")) == 1


def test_text_that_is_not_utf8_is_a_broken_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop(100))
    log.write_bytes(log.read_bytes() + "s1,größe,1700000000000\n".encode("latin-1"))
    data = prepared(log, tmp_path / "out", bad_lines="skip")
    assert data.manifest["counts"]["clicks"] == 300
    assert skipped(tmp_path / "out")[0]["reason"] == "not UTF-8 text"


def test_rows_of_a_table(tmp_path: Path) -> None:
    bad: list[Any] = [("s1", None, 1), (None, "i1", 2), ("s1", "-1", 3)]
    table = frame([*small_shop(100), *bad])
    with pytest.raises(InputError, match="3 lines are broken"):
        prepared(table, tmp_path / "out")
    data = prepared(table, tmp_path / "out", bad_lines="skip")
    assert data.manifest["counts"]["clicks"] == 300
    lines = skipped(tmp_path / "out")
    assert [(line["row"], line["reason"].split()[1]) for line in lines] == [
        (301, "item"),
        (302, "session"),
        (303, "item"),
    ]


def test_both_parts_of_an_existing_split(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.txt", ["1 2 3"] * 200 + ["1 -1"])
    test = write_lines(tmp_path / "test.txt", ["1 2 3"] * 200 + ["-1 1"])
    prepared(train, tmp_path / "out", test=test, bad_lines="skip")
    lines = [(line["file"], line["line"]) for line in skipped(tmp_path / "out")]
    assert lines == [(str(train), 201), (str(test), 201)]
