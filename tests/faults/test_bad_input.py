"""Bad input, through the command: exit code 2, a line or two that say what, where and what to do; nothing written."""

import gzip
import os
import pickle
from pathlib import Path

import polars as pl
import pytest
import zstandard

from posrec.data import sources
from tests.helpers import command, own_process, small_shop, write_lines, write_log

HEADER = "session_id,item_id,timestamp"
GOOD = [f"{session},{item},{time}" for session, item, time in small_shop()]
YOOCHOOSE = [f"{number // 3},2014-04-{1 + number // 30:02d}T10:00:00.000Z,{number % 5},0" for number in range(300)]
VIEWS = ["sessionId;userId;itemId;timeframe;eventdate", *(f"{n // 3};NA;{n % 5};{n};2016-05-09" for n in range(30))]
EVENTS = ["timestamp,visitorid,event,itemid,transactionid", *(f"{n},{n // 3},view,{n % 5}," for n in range(30))]
OTTO = [f'{{"session":{n},"events":[{{"aid":1,"ts":{n},"type":"clicks"}}]}}' for n in range(30)]


def refused(tmp_path: Path, *arguments: object, says: list[str], out: str = "out") -> str:
    """The command turns this away with 2, in one or two lines that say all of `says`, and leaves nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    done = command("prepare", *arguments, "--out", tmp_path / out)
    complaint = done.err[done.err.index("error:") :]
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert complaint.count("\n") <= 2
    for words in says:
        assert words in complaint, complaint
    assert sorted(tmp_path.rglob("*")) == before
    return complaint


def changed(lines: list[str], number: int, line: str) -> list[str]:
    """`lines` with another one as line `number`, counted from 1 as an editor does."""
    return [*lines[: number - 1], line, *lines[number:]]


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
def test_a_header_alone(tmp_path: Path, format: str, header: str) -> None:
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
    refused(tmp_path, twice, "--format", "csv", says=["b.csv, line 1: the column 'item' stands twice"])
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
        tmp_path, dat, "--format", "yoochoose", says=["c.dat, line 1: 1 fields where 4 are expected, a comma between"]
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


CASES = {
    "time": (
        "csv",
        [HEADER, *GOOD],
        40,
        "s1,i1,yesterday",
        ["line 40: 'yesterday' in column 'timestamp' is no time", "write ISO 8601"],
    ),
    "no time": ("csv", [HEADER, *GOOD], 40, "s1,i1,", ["line 40: '' in column 'timestamp' is no time"]),
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
        ["line 120: '2014-04-31T10:00:00.000Z' in column 'timestamp' is no time"],
    ),
    "yoochoose item": (
        "yoochoose",
        YOOCHOOSE,
        300,
        "5,2014-04-30T10:00:00.000Z,,0",
        ["line 300: the item (column 'item') is missing"],
    ),
    "diginetica date": ("diginetica", VIEWS, 9, "1;NA;1;5;soon", ["line 9: 'soon' in column 'eventdate' is no time"]),
    "diginetica timeframe": (
        "diginetica",
        VIEWS,
        9,
        "1;NA;1;x;2016-05-09",
        ["line 9: 'x' in column 'timeframe' is no time"],
    ),
    "diginetica item": ("diginetica", VIEWS, 31, "1;NA;-3;5;2016-05-09", ["line 31: the item (column 'itemId') is -3"]),
    "cut short where events are picked": (
        "retailrocket",
        EVENTS,
        20,
        "19,6",
        ["line 20: 2 fields where 5 are expected"],
    ),
    "visitor": ("retailrocket", EVENTS, 20, "19,,view,6,", ["line 20: the session (column 'visitorid') is missing"]),
    "otto no JSON": ("otto", OTTO, 12, '{"session":1,', ["line 12: not a session as OTTO writes them"]),
    "otto no aid": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"ts":1,"type":"clicks"}]}',
        ["line 12: not a session as OTTO"],
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
        ["line 12: a ts is no whole number of milliseconds"],
    ),
    "otto fraction": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":4,"ts":1.5,"type":"clicks"}]}',
        ["line 12: a ts is no whole number"],
    ),
    "otto ts of no size": (
        "otto",
        OTTO,
        12,
        '{"session":1,"events":[{"aid":4,"ts":99999999999999999999,"type":"clicks"}]}',
        ["line"],
    ),
    "otto event": ("otto", OTTO, 12, '{"session":1,"events":7}', ["line 12: not a session as OTTO"]),
    "negative word": ("sessions", ["1 2"] * 20, 15, "4 -5", ["line 15: an item id is negative"]),
}


@pytest.mark.parametrize("size", [32 << 20, 64], ids=["one block", "small blocks"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_line_is_named(tmp_path: Path, case: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    format, lines, number, line, says = CASES[case]
    log = write_lines(tmp_path / "log", changed(lines, number, line))
    monkeypatch.setattr(sources, "BLOCK_BYTES", size)
    refused(tmp_path, log, "--format", format, says=[str(log), *says])


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    lines = [HEADER, "", '"a\nb",i1,1', "", "c,i2,never"]
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    refused(tmp_path, log, "--format", "csv", says=["log.csv.gz, line 6: 'never' in column 'timestamp'"])


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
        tmp_path, tmp_path / "a.parquet", "--format", "parquet", says=["a.parquet is no Parquet file, or is cut short"]
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
        ("time", ["2014-01-01", "x"], "row 2: 'x' in column 'time' is no time"),
        ("time", [True, False], "row 1: True in column 'time' is no time"),
        ("item", [[1], [2]], "a.parquet"),
    ],
)
def test_bad_rows_of_parquet(tmp_path: Path, column: str, values: list[object], says: str) -> None:
    columns = {"session": [1, 1], "item": [1, 2], "time": [1, 2], column: values}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    refused(tmp_path, tmp_path / "a.parquet", "--format", "parquet", says=[says])


def test_times_of_two_kinds(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", changed([HEADER, *GOOD], 40, "s1,i1,2023-11-15T10:00:00Z"))
    refused(
        tmp_path, log, "--format", "csv", says=["a.csv, line 40: '2023-11-15T10:00:00Z' in column 'timestamp' is no"]
    )


def test_one_column_has_one_role(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", [HEADER, *GOOD])
    words = ("--format", "csv", "--item-column", "session_id")
    refused(tmp_path, log, *words, says=["'session_id' can't be both the session and the item"])


def test_a_tab_is_a_must_in_recbole(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.inter", ["session_id:token,item_id:token,timestamp:float", "1,2,3"])
    refused(tmp_path, log, "--format", "recbole", says=["a.inter, line 1", "use --format csv --delimiter ','"])


def test_an_otto_id_that_would_not_come_back(tmp_path: Path) -> None:
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


def test_something_else_altogether(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_bytes(b"x" * 200_000)
    refused(tmp_path, log, "--format", "csv", says=["a.csv, line 1"])
    log.write_bytes(os.urandom(4096))
    for format in ("csv", "yoochoose", "otto", "sessions", "parquet", "srgnn", "diginetica", "recbole"):
        refused(tmp_path, log, "--format", format, says=["a.csv"])


def test_every_session_filtered_away(tmp_path: Path) -> None:
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


def test_an_output_folder_that_exists(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    (tmp_path / "out").mkdir()
    refused(tmp_path, log, "--format", "csv", says=["out exists already; name another folder, remove it"])
    refused(tmp_path, log, "--format", "csv", "--overwrite", says=["out exists and is no prepared dataset"])
    refused(
        tmp_path, log, "--format", "csv", "--overwrite", says=["a.csv exists and is no prepared dataset"], out="a.csv"
    )


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fraction", "x"], ["--fraction 'x' is no fraction; write e.g. 1/64"]),
        (["--fraction", "1/0"], ["--fraction '1/0' is no fraction"]),
        (["--fraction", "0"], ["--fraction 0 makes no sense"]),
        (["--fraction", "3/2"], ["--fraction 3/2 makes no sense"]),
        (["--gap", "30"], ["--gap '30' is no span of time; write e.g. 30m"]),
        (["--gap", "999999999999d"], ["--gap"]),
        (["--test-days", "0"], ["--test-days 0.0 makes no sense"]),
        (["--test-days", "inf"], ["--test-days inf makes no sense"]),
        (["--test-days", "nan"], ["--test-days nan makes no sense"]),
        (["--test-share", "1"], ["--test-share 1.0 makes no sense"]),
        (["--min-support", "0"], ["--min-support 0 makes no sense"]),
        (["--min-length", "1"], ["--min-length 1 makes no sense"]),
        (["--max-length", "1"], ["--max-length 1 makes no sense"]),
        (["--recipe", "magic"], ["recipe 'magic' is not known; choose one of paper, clean"]),
        (["--recipe", "paper", "--drop-repeats"], ["belong to --recipe clean"]),
        (["--recipe", "paper", "--test-share", "0.3"], ["belong to --recipe clean"]),
        (["--time-unit", "min"], ["time unit 'min' is not known; choose one of s, ms, us, ns"]),
        (["--event-column", "item_id"], ["say which to read with --events"]),
        (["--test", "LOG", "--min-support", "3"], ["--test gives a split that is kept as it is"]),
        (["--test", "LOG", "--recipe", "paper"], ["--test gives a split that is kept as it is"]),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: list[str], says: list[str]) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    given = [str(log) if option == "LOG" else option for option in options]
    refused(tmp_path, log, "--format", "csv", *given, says=says)


def test_formats(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(tmp_path, log, "--format", "xml", says=["format 'xml' is not known; choose one of yoochoose, diginetica"])
    refused(
        tmp_path,
        log,
        "--format",
        "yoochoose",
        "--delimiter",
        ";",
        says=["--delimiter can't be used with --format yoochoose"],
    )
    refused(tmp_path, log, "--format", "otto", "--session-column", "x", says=["--session-column can't be used"])
    users = write_log(tmp_path / "b.csv", small_shop(), "user,item,time")
    refused(tmp_path, users, "--format", "csv", "--test", users, says=["b.csv is a log of users"])


def test_typos_in_options_are_two_as_well(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    for arguments in (
        ["--out", tmp_path / "o"],
        ["--format", "csv"],
        ["--format", "csv", "--out", tmp_path / "o", "--gpa", "3m"],
    ):
        done = command("prepare", log, *arguments)
        assert (done.code, "Traceback" in done.err) == (2, False)
    assert not (tmp_path / "o").exists()


def test_stats_of_what_is_no_dataset(tmp_path: Path) -> None:
    done = command("stats", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "is no prepared dataset (it has no manifest.json); make one with posrec prepare" in done.err
    log = write_log(tmp_path / "a.csv", small_shop())
    assert command("prepare", log, "--format", "csv", "--out", tmp_path / "out").code == 0
    items = tmp_path / "out" / "test_items.npy"
    content = bytearray(items.read_bytes())
    content[-4] ^= 1
    items.write_bytes(content)
    done = command("stats", tmp_path / "out")
    assert (done.code, "was changed after it was prepared" in done.err) == (2, True)
    items.unlink()
    done = command("stats", tmp_path / "out", "--json")
    assert (done.code, "test_items.npy can't be read" in done.err) == (2, True)


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", changed([HEADER, *GOOD], 40, "s1,i1,yesterday"))
    done = own_process("prepare", log, "--format", "csv", "--out", tmp_path / "out", "--time-unit", "ms")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: {log}, line 40: 'yesterday' in column 'timestamp' is no time; "
        "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
