"""One bad line in a good log is named by its number, in every format and however the file is split into blocks."""

import gzip
from pathlib import Path

import pytest

from posrec.data.source import blocks
from tests.faults.refusals import EVENTS, GOOD, HEADER, OTTO, VIEWS, YOOCHOOSE, changed, refused
from tests.helpers import write_lines

CASES = {
    "time": (
        "csv",
        [HEADER, *GOOD],
        40,
        "s1,i1,yesterday",
        ["line 40: 'yesterday' in column 'timestamp' is not a time", "write ISO 8601"],
    ),
    "no time": ("csv", [HEADER, *GOOD], 40, "s1,i1,", ["line 40: '' in column 'timestamp' is not a time"]),
    "no session": (
        "csv",
        [HEADER, *GOOD],
        7,
        ",i1,1700000000000",
        ["line 7: the session (column 'session_id') is missing"],
    ),
    "no item": ("csv", [HEADER, *GOOD], 7, 's1,"",1700000000000', ["line 7: the item (column 'item_id') is missing"]),
    "negative item": (
        "csv",
        [HEADER, *GOOD],
        91,
        "s1,-1,1700000000000",
        ["line 91: the item (column 'item_id') is -1, and an id can't be negative"],
    ),
    "negative session": (
        "csv",
        [HEADER, *GOOD],
        2,
        "-7.0,i1,1700000000000",
        ["line 2: the session (column 'session_id') is -7.0"],
    ),
    "too many fields": (
        "csv",
        [HEADER, *GOOD],
        50,
        "s1,i1,1700000000000,x",
        ["line 50: 4 fields where 3 are expected, a comma"],
    ),
    "too few fields": ("csv", [HEADER, *GOOD], 50, "s1,i1", ["line 50: 2 fields where 3 are expected"]),
    "short first line": ("csv", [HEADER, *GOOD], 2, "s1", ["line 2: 1 fields where 3 are expected"]),
    "yoochoose time": (
        "yoochoose",
        YOOCHOOSE,
        120,
        "5,2014-04-31T10:00:00.000Z,1,0",
        ["line 120: '2014-04-31T10:00:00.000Z' in column 'timestamp' is not a time"],
    ),
    "yoochoose item": (
        "yoochoose",
        YOOCHOOSE,
        300,
        "5,2014-04-30T10:00:00.000Z,,0",
        ["line 300: the item (column 'item') is missing"],
    ),
    "diginetica date": (
        "diginetica",
        VIEWS,
        9,
        "1;NA;1;5;soon",
        ["line 9: 'soon' in column 'eventdate' is not a time"],
    ),
    "diginetica timeframe": (
        "diginetica",
        VIEWS,
        9,
        "1;NA;1;x;2016-05-09",
        ["line 9: 'x' in column 'timeframe' is not a time"],
    ),
    "diginetica item": ("diginetica", VIEWS, 31, "1;NA;-3;5;2016-05-09", ["line 31: the item (column 'itemId') is -3"]),
    "cut short where events are selected": (
        "retailrocket",
        EVENTS,
        20,
        "19,6",
        ["line 20: 2 fields where 5 are expected"],
    ),
    "visitor": ("retailrocket", EVENTS, 20, "19,,view,6,", ["line 20: the user (column 'visitorid') is missing"]),
    "otto no JSON": ("otto", OTTO, 12, '{"session":1,', ["line 12: not a session in OTTO's format"]),
    "otto no aid": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"ts":1,"type":"clicks"}]}',
        ["line 12: not a session in OTTO"],
    ),
    "otto negative": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":-4,"ts":1,"type":"clicks"}]}',
        ["line 12: a session or aid is missing or negative"],
    ),
    "otto null": (
        "otto",
        OTTO,
        12,
        '{"session":null,"events":[{"aid":4,"ts":1,"type":"clicks"}]}',
        ["line 12: a session or aid is missing"],
    ),
    "otto ts": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":4,"ts":"noon","type":"clicks"}]}',
        ["line 12: a ts is not a whole number of milliseconds"],
    ),
    "otto fraction": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":4,"ts":1.5,"type":"clicks"}]}',
        ["line 12: a ts is not a whole number"],
    ),
    "otto ts too large": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":4,"ts":99999999999999999999,"type":"clicks"}]}',
        ["line"],
    ),
    "otto event": ("otto", OTTO, 12, '{"session":1,"events":7}', ["line 12: not a session in OTTO"]),
    "negative word": ("sessions", ["1 2"] * 20, 15, "4 -5", ["line 15: an item id is negative"]),
}


@pytest.mark.parametrize("size", [32 << 20, 64], ids=["one block", "small blocks"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_line_is_named(tmp_path: Path, case: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    format, lines, number, line, says = CASES[case]
    log = write_lines(tmp_path / "log", changed(lines, number, line))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    refused(tmp_path, log, "--format", format, says=[str(log), *says])


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    lines = [HEADER, "", '"a\nb",i1,1', "", "c,i2,never"]
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    refused(tmp_path, log, "--format", "csv", says=["log.csv.gz, line 6: 'never' in column 'timestamp'"])
