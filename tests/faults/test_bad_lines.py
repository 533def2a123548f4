"""One bad line in a good log is named by its number, in every format and however the file is split
into blocks."""

import gzip
from pathlib import Path

import pytest

from posrec.data.source import blocks
from tests.faults.refusals import (
    EVENTS,
    GOOD,
    HEADER,
    OTTO,
    SESSIONS,
    VIEWS,
    YOOCHOOSE,
    changed,
    refused,
)
from tests.helpers import write_lines

LOGS = {
    "csv": [HEADER, *GOOD],
    "csv --events view": [
        "session_id,item_id,timestamp,event",
        *(f"{line},view" for line in GOOD),
    ],
    "yoochoose": YOOCHOOSE,
    "diginetica": VIEWS,
    "retailrocket": EVENTS,
    "otto": OTTO,
    "sessions": SESSIONS,
}
OTTO_LINE = '{{"session":{},"events":[{{"aid":{},"ts":{},"type":"clicks"}}]}}'
CASES = [  # format, number of the bad line, its text, the message
    ("csv", 40, "s1,i1,yesterday", "'yesterday' in column 'timestamp' is not a time"),
    ("csv", 40, "s1,i1,", "the time (column 'timestamp') is missing"),
    (
        "csv",
        40,
        "s1,i1,2023-11-15T10:00:00Z",
        "'2023-11-15T10:00:00Z' in column 'timestamp' is not a n",
    ),
    ("csv", 7, ",i1,1700000000000", "the session (column 'session_id') is missing"),
    ("csv", 7, 's1,"",1700000000000', "the item (column 'item_id') is missing"),
    ("csv", 91, "s1,-1,1700000000000", "the item (column 'item_id') is -1"),
    ("csv", 2, "-7.0,i1,1700000000000", "the session (column 'session_id') is -7.0"),
    ("csv", 50, "s1,i1,1700000000000,x", "4 fields where 3"),
    ("csv", 2, "s1", "1 fields where 3"),
    ("csv --events view", 21, "s1,i1,1700000000000", "3 fields where 4"),
    (
        "yoochoose",
        120,
        "5,2014-04-31T10:00:00.000Z,1,0",
        "'2014-04-31T10:00:00.000Z' in column",
    ),
    (
        "yoochoose",
        300,
        "5,2014-04-30T10:00:00.000Z,,0",
        "the item (column 'item') is missing",
    ),
    ("diginetica", 9, "1;NA;1;5;soon", "'soon' in column 'eventdate'"),
    ("diginetica", 9, "1;NA;1;x;2016-05-09", "'x' in column 'timeframe'"),
    ("diginetica", 31, "1;NA;-3;5;2016-05-09", "the item (column 'itemId') is -3"),
    (
        "retailrocket",
        20,
        "19,6",
        "2 fields where 5",
    ),  # cut short where events are selected
    ("retailrocket", 20, "19,,view,6,", "the user (column 'visitorid') is missing"),
    ("otto", 12, '{"session":1,', "not a session in OTTO's format"),
    (
        "otto",
        12,
        '{"session":1,"events":[{"ts":1,"type":"clicks"}]}',
        "not a session in OTTO",
    ),
    ("otto", 12, OTTO_LINE.format(1, -4, 1), "a session or aid is missing or negative"),
    ("otto", 12, OTTO_LINE.format("null", 4, 1), "a session or aid is missing"),
    (
        "otto",
        12,
        OTTO_LINE.format(1, "1e5", 1),
        "a session or aid is a number with a point",
    ),
    ("otto", 12, OTTO_LINE.format(1, 4, '"noon"'), "a ts is not a whole number"),
    ("otto", 12, OTTO_LINE.format(1, 4, 1.5), "a ts is not a whole number"),
    (
        "otto",
        12,
        OTTO_LINE.format(1, 4, 99999999999999999999),
        "'99999999999999999999' in column",
    ),
    ("otto", 12, '{"session":1,"events":7}', "not a session in OTTO"),
    ("sessions", 15, "4 -5", "an item id is negative"),
]


@pytest.mark.parametrize("size", [32 << 20, 64], ids=["one block", "small blocks"])
@pytest.mark.parametrize(("format", "number", "line", "says"), CASES)
def test_the_line_is_named(
    tmp_path: Path,
    format: str,
    number: int,
    line: str,
    says: str,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = write_lines(tmp_path / "log", changed(LOGS[format], number, line))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    refused(
        log,
        f"--format {format}",
        f"{log}, line {number}: {says}" if says else f"{log}, ",
    )


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    log = write_lines(
        tmp_path / "a.csv", changed(LOGS["csv"], 40, 's1,5" pipe,1700000000000')
    )
    refused(log, "--format csv", "a.csv", "line", "quote")


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    lines = [HEADER, "", '"a\nb",i1,1', "", "c,i2,never"]
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    refused(log, "--format csv", "log.csv.gz, line 6: 'never' in column 'timestamp'")
