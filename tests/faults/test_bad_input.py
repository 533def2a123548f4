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

FORMATS = [
    *("csv", "yoochoose", "otto", "sessions"),
    *("parquet", "srgnn", "diginetica", "recbole"),
]


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", "--format csv", "none.csv")
    refused(tmp_path / "*.csv", "--format csv", "*.csv")
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, f"--format csv --items {tmp_path / 'i.csv'}", "i.csv")
    refused(log, f"--format sessions --test {tmp_path / 'none'}", "none")


@pytest.mark.parametrize("format", [*FORMATS, "retailrocket"])
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
    refused(log, f"--format {format}", "a.csv", "header")


NO_ITEM = "session_id,thing,time"
RECBOLE = "session_id:token,item_id:token,timestamp:float"


@pytest.mark.parametrize(
    ("header", "options", "keyword"),
    [
        (NO_ITEM, "csv", "the item"),
        (NO_ITEM, "csv --item-column sku", "'sku'"),
        (NO_ITEM, "diginetica", "a.csv, line 1: "),
        (NO_ITEM, "retailrocket", "'visitorid'"),
        (NO_ITEM, "csv --events x --item-column thing", "the event"),
        ("session,item,item", "csv", "twice"),
        (HEADER, "csv --item-column session_id", "both the session and the item"),
        (RECBOLE, "recbole", "--format csv --delimiter ','"),
    ],
)
def test_a_header_without_the_columns(
    tmp_path: Path, header: str, options: str, keyword: str
) -> None:
    log = write_lines(tmp_path / "a.csv", [header, "1,2,3"])
    refused(log, f"--format {options}", keyword)


@pytest.mark.parametrize(
    ("lines", "old", "new", "options", "keyword"),
    [
        ([HEADER, *GOOD], ",", ";", "csv", "--delimiter ';'"),
        ([HEADER, *GOOD], ",", "\t", "csv", "--delimiter '\\t'"),
        (YOOCHOOSE, ",", ";", "yoochoose", "a.csv, line 1: 1 fields"),
        (VIEWS, ";", ",", "diginetica", "semicolons"),
        (VIEWS, ",", ";", "csv --delimiter ';;'", "one character"),
    ],
)
def test_a_wrong_delimiter(
    tmp_path: Path, lines: list[str], old: str, new: str, options: str, keyword: str
) -> None:
    log = write_lines(tmp_path / "a.csv", [line.replace(old, new) for line in lines])
    refused(log, f"--format {options}", keyword, lines=11)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bz2", "xz"])
@pytest.mark.parametrize("format", ["csv", "sessions", "otto", "parquet", "srgnn"])
def test_a_truncated_archive(tmp_path: Path, format: str, compression: str) -> None:
    content = os.urandom(3000).hex().encode()
    (tmp_path / "log").write_bytes(packed(content, compression)[:-20])
    refused(tmp_path / "log", f"--format {format}", "log is cut short or damaged")


@pytest.mark.parametrize(
    ("column", "values", "keyword"),
    [
        ("item", ["a", None], "row 2: the item"),
        ("item", [1.0, float("nan")], "row 2: the item"),
        ("item", [1, -1], "row 2: the item"),
        ("session", ["", "x"], "row 1: the session"),
        ("time", ["2014-01-01", "x"], "row 2: 'x'"),
        ("time", [True, False], "row 1: 'True'"),
        ("item", [[1], [2]], "a.parquet"),
    ],
)
def test_bad_rows_of_parquet(
    tmp_path: Path, column: str, values: list[object], keyword: str
) -> None:
    columns = {"session": [1, 1], "item": [1, 2], "time": [1, 2], column: values}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "--format parquet", keyword, lines=3)


GERMAN = "\n".join(changed([HEADER, *GOOD], 31, "s1,größe,1700000000000"))
NOISE = random.Random(0).randbytes(4096)


@pytest.mark.parametrize(
    ("content", "format", "keyword"),
    [
        (GERMAN.encode("latin-1"), "csv", "a, line 31: not UTF-8"),
        (GERMAN.encode("utf-16"), "csv", "a, line 1: not UTF-8"),
        (b"1 2\n3 \xff\n", "sessions", "a, line 2: not UTF-8"),
        (b"x" * 200_000, "csv", "a, line 1"),
        *((NOISE, format, "a") for format in FORMATS),
    ],
    ids=["Latin-1", "UTF-16", "one byte", "one line", *FORMATS],
)
def test_files_that_are_not_text_or_not_logs(
    tmp_path: Path, content: bytes, format: str, keyword: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    refused(tmp_path / "a", f"--format {format}", keyword, lines=11)


def test_a_recipe_that_leaves_nothing(tmp_path: Path) -> None:
    alone = write_log(tmp_path / "a.csv", [(f"s{n}", "i", n) for n in range(20)])
    refused(alone, "--format csv", "nothing is left", "20 clicks in 20 sessions")
    shop = write_log(tmp_path / "b.csv", small_shop())
    refused(shop, "--format csv --min-support 1000", "nothing is left", "--min-support")
    refused(shop, "--format csv --test-days 900", "nothing is left", "--test-days")
    refused(shop, "--format csv --fraction 1/1000", "nothing is left", "1/1000")
    sessions = write_lines(tmp_path / "c.txt", ["1", "2"])
    refused(sessions, f"--format sessions --test {sessions}", "nothing is left")
