"""Bad input to the command: exit code 2, one or two lines that say what, where and what to do, and nothing written."""

import gzip
import os
import pickle
from pathlib import Path

import polars as pl
import pytest
import zstandard

from tests.faults.refusals import EVENTS, GOOD, HEADER, VIEWS, YOOCHOOSE, changed, refused
from tests.helpers import small_shop, write_lines, write_log


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path, tmp_path / "none.csv", "--format", "csv", says=["none.csv does not exist", "check the path"])
    refused(tmp_path, tmp_path / "*.csv", "--format", "csv", says=["*.csv does not exist"])
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(tmp_path, log, "--format", "csv", "--items", tmp_path / "i.csv", says=["i.csv does not exist"])
    refused(tmp_path, log, "--format", "sessions", "--test", tmp_path / "t", says=["t does not exist"])


@pytest.mark.parametrize(
    "format", ["yoochoose", "diginetica", "retailrocket", "otto", "recbole", "csv", "parquet", "sessions", "srgnn"]
)
def test_an_empty_file_of_every_format(tmp_path: Path, format: str) -> None:
    (tmp_path / "a").touch()
    refused(tmp_path, tmp_path / "a", "--format", format, says=["a is empty; there is nothing to read"])
    (tmp_path / "a").write_bytes(gzip.compress(b""))
    refused(tmp_path, tmp_path / "a", "--format", format, says=[str(tmp_path / "a")])
    (tmp_path / "a").write_bytes(b"\n \n")
    refused(tmp_path, tmp_path / "a", "--format", format, says=[str(tmp_path / "a")])


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
    refused(tmp_path, log, "--format", format, says=["a.csv holds no clicks", "header"])


def test_a_missing_column(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", ["session_id,thing,timestamp", "1,2,3"])
    refused(
        tmp_path,
        log,
        "--format",
        "csv",
        says=["a.csv has no column that looks like the item; it has session_id, thing, timestamp", "--item-column"],
    )
    refused(
        tmp_path,
        log,
        "--format",
        "csv",
        "--item-column",
        "sku",
        says=["a.csv has no column 'sku' (--item-column); it has session_id, thing"],
    )
    refused(tmp_path, log, "--format", "diginetica", says=["a.csv, line 1: not a Diginetica header"])
    refused(tmp_path, log, "--format", "retailrocket", says=["a.csv has no column 'visitorid'"])
    refused(tmp_path, log, "--format", "csv", "--events", "x", "--item-column", "thing", says=["looks like the event"])
    twice = write_lines(tmp_path / "b.csv", ["session,item,item,time", "1,2,2,3"])
    refused(tmp_path, twice, "--format", "csv", says=["b.csv, line 1: the column 'item' appears twice"])
    table = tmp_path / "c.parquet"
    pl.DataFrame({"session": [1], "item": [1]}).write_parquet(table)
    refused(tmp_path, table, "--format", "parquet", says=["c.parquet has no column that looks like the time"])


def test_a_wrong_delimiter(tmp_path: Path) -> None:
    semicolons = write_lines(tmp_path / "a.csv", [line.replace(",", ";") for line in [HEADER, *GOOD]])
    refused(
        tmp_path,
        semicolons,
        "--format",
        "csv",
        says=["a.csv, line 1", "separated by a semicolon: pass --delimiter ';'"],
    )
    tabs = write_lines(tmp_path / "b.csv", [line.replace(",", "\t") for line in [HEADER, *GOOD]])
    refused(tmp_path, tabs, "--format", "csv", says=["b.csv, line 1", "separated by a tab: pass --delimiter '\\t'"])
    dat = write_lines(tmp_path / "c.dat", [line.replace(",", ";") for line in YOOCHOOSE])
    refused(
        tmp_path,
        dat,
        "--format",
        "yoochoose",
        says=["c.dat, line 1: 1 fields where 4 are expected, a comma between", "c.dat, line 10: 1 fields"],
        lines=11,
    )
    views = write_lines(tmp_path / "d.csv", [line.replace(";", ",") for line in VIEWS])
    refused(
        tmp_path,
        views,
        "--format",
        "diginetica",
        says=["d.csv, line 1", "separated by semicolons; it has sessionId,userId"],
    )
    refused(
        tmp_path,
        semicolons,
        "--format",
        "csv",
        "--delimiter",
        ";;",
        says=["--delimiter ';;' can't be used; give one character"],
    )


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("format", ["csv", "sessions", "otto", "parquet", "srgnn"])
def test_a_truncated_archive(tmp_path: Path, format: str, pack) -> None:  # type: ignore[no-untyped-def]
    content = os.urandom(3000).hex().encode()
    (tmp_path / "log").write_bytes(pack(content)[:-20])
    refused(tmp_path, tmp_path / "log", "--format", format, says=["log is cut short or damaged", "fetch it again"])


def test_damaged_parquet(tmp_path: Path) -> None:
    table = pl.DataFrame({"session": range(5000), "item": range(5000), "time": range(5000)})
    table.write_parquet(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-100])
    refused(
        tmp_path,
        tmp_path / "a.parquet",
        "--format",
        "parquet",
        says=["a.parquet is not a Parquet file, or is cut short"],
    )
    (tmp_path / "a.parquet").write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    refused(tmp_path, tmp_path / "a.parquet", "--format", "parquet", says=["a.parquet, after row 0: can't be read"])


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("item", ["a", None], "row 2: the item (column 'item') is missing"),
        ("item", [1.0, float("nan")], "row 2: the item (column 'item') is missing"),
        ("item", [1, -1], "row 2: the item (column 'item') is -1, and an id can't be negative"),
        ("session", ["", "x"], "row 1: the session (column 'session') is missing"),
        ("time", ["2014-01-01", "x"], "row 2: 'x' in column 'time' is not a time"),
        ("time", [True, False], "row 1: True in column 'time' is not a time"),
        ("item", [[1], [2]], "a.parquet"),
    ],
)
def test_bad_rows_of_parquet(tmp_path: Path, column: str, values: list[object], says: str) -> None:
    columns = {"session": [1, 1], "item": [1, 2], "time": [1, 2], column: values}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    refused(tmp_path, tmp_path / "a.parquet", "--format", "parquet", says=[says], lines=3)


def test_a_text_among_times_that_are_numbers(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", changed([HEADER, *GOOD], 40, "s1,i1,2023-11-15T10:00:00Z"))
    refused(
        tmp_path,
        log,
        "--format",
        "csv",
        says=["a.csv, line 40: '2023-11-15T10:00:00Z' in column 'timestamp' is not a number"],
    )


def test_a_column_can_have_one_role_only(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", [HEADER, *GOOD])
    words = ("--format", "csv", "--item-column", "session_id")
    refused(tmp_path, log, *words, says=["'session_id' can't be both the session and the item"])


def test_recbole_needs_tabs(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.inter", ["session_id:token,item_id:token,timestamp:float", "1,2,3"])
    refused(tmp_path, log, "--format", "recbole", says=["a.inter, line 1", "use --format csv --delimiter ','"])


def test_an_otto_id_that_would_not_be_kept_as_written(tmp_path: Path) -> None:
    lines = ['{"session": 1, "events": [{"aid": 2, "ts": 3, "type": "clicks"}]}'] * 3
    log = write_lines(tmp_path / "a.jsonl", [*lines, lines[0].replace('"aid": 2', '"aid": 1e5')])
    refused(tmp_path, log, "--format", "otto", says=["a.jsonl, line 4: a session or aid is a number with a point"])


def test_a_line_that_lost_its_event(tmp_path: Path) -> None:
    lines = ["session_id,item_id,timestamp,event", *(f"{line},view" for line in GOOD)]
    lines[20] = lines[20].removesuffix(",view")
    log = write_lines(tmp_path / "a.csv", lines)
    refused(
        tmp_path, log, "--format", "csv", "--events", "view", says=["a.csv, line 21: 3 fields where 4 are expected"]
    )


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    lines = [HEADER.encode(), *(line.encode() for line in GOOD)]
    lines[30] = "s1,größe,1700000000000".encode("latin-1")
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    refused(tmp_path, tmp_path / "a.csv", "--format", "csv", says=["a.csv, line 31: not UTF-8 text; convert the file"])
    (tmp_path / "a.csv").write_bytes("\n".join([HEADER, *GOOD]).encode("utf-16"))
    refused(tmp_path, tmp_path / "a.csv", "--format", "csv", says=["a.csv, line 1: not UTF-8 text"])
    (tmp_path / "a.txt").write_bytes(b"1 2\n3 \xff\n")
    refused(tmp_path, tmp_path / "a.txt", "--format", "sessions", says=["a.txt, line 2: not UTF-8"])


def test_a_quote_never_closed(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", changed([HEADER, *GOOD], 40, 's1,5" pipe,1700000000000'))
    refused(tmp_path, log, "--format", "csv", says=["a.csv", "line", "quote"])


def test_files_that_are_not_logs_at_all(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_bytes(b"x" * 200_000)
    refused(tmp_path, log, "--format", "csv", says=["a.csv, line 1"])
    log.write_bytes(os.urandom(4096))
    for format in ("csv", "yoochoose", "otto", "sessions", "parquet", "srgnn", "diginetica", "recbole"):
        refused(tmp_path, log, "--format", format, says=["a.csv"], lines=11)


def test_a_recipe_that_leaves_nothing(tmp_path: Path) -> None:
    alone = write_log(tmp_path / "a.csv", [(f"s{n}", "i", n) for n in range(20)])
    refused(
        tmp_path,
        alone,
        "--format",
        "csv",
        says=[
            "nothing is left after the step 'sessions under 2",
            "20 clicks in 20 sessions",
            "lower --min-support or --min-length",
        ],
    )
    shop = write_log(tmp_path / "b.csv", small_shop())
    refused(tmp_path, shop, "--format", "csv", "--min-support", 1000, says=["nothing is left", "--min-support"])
    refused(tmp_path, shop, "--format", "csv", "--test-days", 900, says=["nothing is left to train on", "--test-days"])
    refused(tmp_path, shop, "--format", "csv", "--fraction", "1/1000", says=["nothing is left to train on", "1/1000"])
    sessions = write_lines(tmp_path / "c.txt", ["1", "2"])
    refused(tmp_path, sessions, "--format", "sessions", "--test", sessions, says=["nothing is left"])


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch was-run",)


@pytest.mark.parametrize(
    "content", [[[1, 2], Malicious()], {"a": 1}, [[1.5, 2.0]], [["1", "2"]], [[1, -2]], [[True, 2]]]
)
def test_a_pickle_of_anything_else(tmp_path: Path, content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.txt").write_bytes(pickle.dumps(content))
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, tmp_path / "train.txt", "--format", "srgnn", says=["train.txt", "ints"])
    assert not (tmp_path / "was-run").exists()
