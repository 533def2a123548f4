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
    "csv --events view": [f"{HEADER},event", *(f"{line},view" for line in GOOD)],
    "yoochoose": YOOCHOOSE,
    "diginetica": VIEWS,
    "retailrocket": EVENTS,
    "otto": OTTO,
    "sessions": SESSIONS,
}
OTTO_LINE = '{{"session":{},"events":[{{"aid":{},"ts":{},"type":"clicks"}}]}}'
HUGE = 99999999999999999999
CASES = [  # format, number of the bad line, its text, a keyword of the message
    ("csv", 40, "s1,i1,yesterday", "'yesterday'"),
    ("csv", 40, "s1,i1,", "the time"),
    ("csv", 40, "s1,i1,2023-11-15T10:00:00Z", "'2023-11-15T10:00:00Z'"),
    ("csv", 7, ",i1,1700000000000", "the session"),
    ("csv", 7, 's1,"",1700000000000', "the item"),
    ("csv", 91, "s1,-1,1700000000000", "-1"),
    ("csv", 2, "-7.0,i1,1700000000000", "-7.0"),
    ("csv", 50, "s1,i1,1700000000000,x", "4 fields"),
    ("csv", 2, "s1", "1 fields"),
    ("csv --events view", 21, "s1,i1,1700000000000", "3 fields"),
    ("yoochoose", 120, "5,2014-04-31T10:00:00.000Z,1,0", "'2014-04-31T10:00:00.000Z'"),
    ("yoochoose", 300, "5,2014-04-30T10:00:00.000Z,,0", "the item"),
    ("diginetica", 9, "1;NA;1;5;soon", "'soon'"),
    ("diginetica", 9, "1;NA;1;x;2016-05-09", "'x'"),
    ("diginetica", 31, "1;NA;-3;5;2016-05-09", "-3"),
    ("retailrocket", 20, "19,6", "2 fields"),  # cut short where events are selected
    ("retailrocket", 20, "19,,view,6,", "the user"),
    ("otto", 12, '{"session":1,', "OTTO"),
    ("otto", 12, '{"session":1,"events":[{"ts":1,"type":"clicks"}]}', "OTTO"),
    ("otto", 12, '{"session":1,"events":7}', "OTTO"),
    ("otto", 12, OTTO_LINE.format(1, -4, 1), "negative"),
    ("otto", 12, OTTO_LINE.format("null", 4, 1), "missing"),
    ("otto", 12, OTTO_LINE.format(1, "1e5", 1), "point"),
    ("otto", 12, OTTO_LINE.format(1, 4, '"noon"'), "ts"),
    ("otto", 12, OTTO_LINE.format(1, 4, 1.5), "ts"),
    ("otto", 12, OTTO_LINE.format(1, 4, HUGE), f"'{HUGE}'"),
    ("sessions", 15, "4 -5", "negative"),
]


@pytest.mark.parametrize("size", [32 << 20, 64], ids=["one block", "small blocks"])
@pytest.mark.parametrize(("format", "number", "line", "keyword"), CASES)
def test_the_line_is_named(
    tmp_path: Path,
    format: str,
    number: int,
    line: str,
    keyword: str,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = write_lines(tmp_path / "log", changed(LOGS[format], number, line))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    refused(log, f"--format {format}", f"{log}, line {number}: ", keyword)


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    lines = changed(LOGS["csv"], 40, 's1,5" pipe,1700000000000')
    log = write_lines(tmp_path / "a.csv", lines)
    refused(log, "--format csv", "a.csv", "line", "quote")


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    lines = [HEADER, "", '"a\nb",i1,1', "", "c,i2,never"]
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    refused(log, "--format csv", "log.csv.gz, line 6: 'never'")
