"""Bad input to the command: exit code 2, one or two lines that say what, where and what to do, and
nothing written."""

import gzip
import os
import random
from pathlib import Path

import polars as pl
import pytest

from tests.faults.refusals import (
    EVENTS,
    GOOD,
    HEADER,
    VIEWS,
    YOOCHOOSE,
    changed,
    refused,
)
from tests.helpers import packed, small_shop, write_lines, write_log


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", "--format csv", "none.csv does not exist")
    refused(tmp_path / "*.csv", "--format csv", "*.csv does not exist")
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, f"--format csv --items {tmp_path / 'i.csv'}", "i.csv does not exist")
    refused(log, f"--format sessions --test {tmp_path / 't'}", "t does not exist")


@pytest.mark.parametrize(
    "format",
    [
        "yoochoose",
        "diginetica",
        "retailrocket",
        "otto",
        "recbole",
        "csv",
        "parquet",
        "sessions",
        "srgnn",
    ],
)
def test_an_empty_file_of_every_format(tmp_path: Path, format: str) -> None:
    log = tmp_path / "a"
    log.touch()
    refused(log, f"--format {format}", "a is empty")
    for content in (gzip.compress(b""), b"\n \n"):
        log.write_bytes(content)
        refused(log, f"--format {format}", str(log))


@pytest.mark.parametrize(
    ("format", "header"),
    [
        ("csv", HEADER),
        ("diginetica", VIEWS[0]),
        ("retailrocket", EVENTS[0]),
        ("yoochoose", "session_id,timestamp,item_id,category"),
        ("recbole", "session_id:token\titem_id:token\ttimestamp:float"),
    ],
)
def test_a_file_with_only_a_header(tmp_path: Path, format: str, header: str) -> None:
    log = write_lines(tmp_path / "a.csv", [header])
    refused(log, f"--format {format}", "a.csv holds no clicks", "header")


@pytest.mark.parametrize(
    ("header", "options", "says"),
    [
        ("session_id,thing,time", "csv", "no column that looks like the item"),
        ("session_id,thing,time", "csv --item-column sku", "a.csv has no column 'sku'"),
        (
            "session_id,thing,time",
            "diginetica",
            "a.csv, line 1: not a Diginetica header",
        ),
        ("session_id,thing,time", "retailrocket", "a.csv has no column 'visitorid'"),
        (
            "session_id,thing,time",
            "csv --events x --item-column thing",
            "looks like the event",
        ),
        ("session,item,item", "csv", "a.csv, line 1: the column 'item' appears twice"),
        (HEADER, "csv --item-column session_id", "both the session and the item"),
        (
            "session_id:token,item_id:token,timestamp:float",
            "recbole",
            "--format csv --delimiter ','",
        ),
    ],
)
def test_a_header_without_the_columns(
    tmp_path: Path, header: str, options: str, says: str
) -> None:
    refused(
        write_lines(tmp_path / "a.csv", [header, "1,2,3"]), f"--format {options}", says
    )


@pytest.mark.parametrize(
    ("lines", "old", "new", "options", "says"),
    [
        ([HEADER, *GOOD], ",", ";", "csv", "pass --delimiter ';'"),
        ([HEADER, *GOOD], ",", "\t", "csv", "pass --delimiter '\\t'"),
        (YOOCHOOSE, ",", ";", "yoochoose", "a.csv, line 10: 1 fields where 4"),
        (VIEWS, ";", ",", "diginetica", "separated by semicolons"),
        (VIEWS, ",", ";", "csv --delimiter ';;'", "give one character"),
    ],
)
def test_a_wrong_delimiter(
    tmp_path: Path, lines: list[str], old: str, new: str, options: str, says: str
) -> None:
    log = write_lines(tmp_path / "a.csv", [line.replace(old, new) for line in lines])
    refused(log, f"--format {options}", says, lines=11)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bz2", "xz"])
@pytest.mark.parametrize("format", ["csv", "sessions", "otto", "parquet", "srgnn"])
def test_a_truncated_archive(tmp_path: Path, format: str, compression: str) -> None:
    content = os.urandom(3000).hex().encode()
    (tmp_path / "log").write_bytes(packed(content, compression)[:-20])
    refused(tmp_path / "log", f"--format {format}", "log is cut short or damaged")


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("item", ["a", None], "row 2: the item (column 'item') is missing"),
        ("item", [1.0, float("nan")], "row 2: the item (column 'item') is missing"),
        ("item", [1, -1], "row 2: the item (column 'item') is -1"),
        ("session", ["", "x"], "row 1: the session (column 'session') is missing"),
        ("time", ["2014-01-01", "x"], "row 2: 'x' in column 'time'"),
        ("time", [True, False], "row 1: 'True' in column 'time'"),
        ("item", [[1], [2]], "a.parquet"),
    ],
)
def test_bad_rows_of_parquet(
    tmp_path: Path, column: str, values: list[object], says: str
) -> None:
    columns = {"session": [1, 1], "item": [1, 2], "time": [1, 2], column: values}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "--format parquet", says, lines=3)


NOT_LOGS = {
    "Latin-1": "\n".join(changed([HEADER, *GOOD], 31, "s1,größe,1700000000000")).encode(
        "latin-1"
    ),
    "UTF-16": "\n".join([HEADER, *GOOD]).encode("utf-16"),
    "one byte": b"1 2\n3 \xff\n",
    "one line": b"x" * 200_000,
    "noise": random.Random(0).randbytes(4096),
}
FORMATS = (
    "csv",
    "yoochoose",
    "otto",
    "sessions",
    "parquet",
    "srgnn",
    "diginetica",
    "recbole",
)


@pytest.mark.parametrize(
    ("content", "format", "says"),
    [
        ("Latin-1", "csv", "a, line 31: not UTF-8"),
        ("UTF-16", "csv", "a, line 1: not UTF-8"),
        ("one byte", "sessions", "a, line 2: not UTF-8"),
        ("one line", "csv", "a, line 1"),
        *(("noise", format, "a") for format in FORMATS),
    ],
)
def test_files_that_are_not_text_or_not_logs(
    tmp_path: Path, content: str, format: str, says: str
) -> None:
    (tmp_path / "a").write_bytes(NOT_LOGS[content])
    refused(tmp_path / "a", f"--format {format}", says, lines=11)


def test_a_recipe_that_leaves_nothing(tmp_path: Path) -> None:
    alone = write_log(tmp_path / "a.csv", [(f"s{n}", "i", n) for n in range(20)])
    refused(alone, "--format csv", "nothing is left", "20 clicks in 20 sessions")
    shop = write_log(tmp_path / "b.csv", small_shop())
    refused(shop, "--format csv --min-support 1000", "nothing is left", "--min-support")
    refused(
        shop,
        "--format csv --test-days 900",
        "nothing is left to train on",
        "--test-days",
    )
    refused(
        shop, "--format csv --fraction 1/1000", "nothing is left to train on", "1/1000"
    )
    sessions = write_lines(tmp_path / "c.txt", ["1", "2"])
    refused(sessions, f"--format sessions --test {sessions}", "nothing is left")
