"""Logs whose files have formats and columns of their own, and nested columns of tables."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import posrec
from posrec.errors import InputError
from tests.data.prepare.test_engines import same
from tests.data.reading import prepared
from tests.helpers import (
    RecordingProgress,
    command,
    frame,
    raw,
    small_shop,
    write_lines,
    write_log,
)

Clicks = Sequence[tuple[str, str, int]]
SHOP = small_shop(60)
TABLES = {
    "hours/*.jsonl.gz": {"session": "ctx.sid", "item": "sku", "time": "ts"},
    "week2.parquet": {"session": "visit", "item": "what.article", "time": "at"},
}
EVERY_CLICK: dict[str, Any] = {"min_support": 1, "no_test": True}


def write_hour(path: Path, clicks: Clicks) -> Path:
    events = [{"ctx": {"sid": s}, "sku": item, "ts": time} for s, item, time in clicks]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, events)).encode()))
    return path


def write_week(path: Path, clicks: Clicks) -> Path:
    """With times in seconds, and the item in a struct."""
    table = {
        "visit": [session for session, _, _ in clicks],
        "what": [{"article": item, "price": 1.5} for _, item, _ in clicks],
        "at": [time // 1000 for _, _, time in clicks],
    }
    pl.DataFrame(table).write_parquet(path)
    return path


def write_both(folder: Path) -> list[str | Path]:
    """The first two thirds of the clicks in two hours, the rest in a week, which comes second."""
    write_hour(folder / "hours/00.jsonl.gz", SHOP[:60])
    write_hour(folder / "hours/01.jsonl.gz", SHOP[60:120])
    week = write_week(folder / "week2.parquet", SHOP[120:])
    return [folder / "hours/00.jsonl.gz", week, folder / "hours/01.jsonl.gz"]


def write_mapping(path: Path) -> Path:
    lines = []
    for pattern, table in TABLES.items():
        lines += [f'["{pattern}"]', *(f'{key} = "{table[key]}"' for key in table), ""]
    return write_lines(path, lines)


def test_one_command_reads_json_lines_and_parquet_with_other_columns(
    tmp_path: Path,
) -> None:
    expected = prepared(write_log(tmp_path / "all.csv", SHOP), tmp_path / "expected")
    week = write_both(tmp_path)[1]
    mapping = write_mapping(tmp_path / "mapping.toml")
    hours = f"{tmp_path}/hours/*.jsonl.gz"
    out = tmp_path / "out"
    done = command("prepare", hours, week, "--columns", mapping, "--out", out)
    assert done.code == 0, done.err
    assert "00.jsonl.gz: read as jsonl" in done.err
    assert "week2.parquet: read as parquet" in done.err
    data = posrec.load(out)
    assert data.manifest["steps"][0]["clicks"] == len(SHOP) == 180
    assert data.manifest["format"] == "jsonl, parquet"
    # All times are whole seconds, so that the clicks are those of one file.
    assert data.fingerprint == expected.fingerprint


def test_parts_and_python_read_the_same(tmp_path: Path) -> None:
    files = write_both(tmp_path)
    mapping = write_mapping(tmp_path / "mapping.toml")
    data = same(files, tmp_path, max_buffered=10, columns=mapping)
    assert data is not None
    assert prepared(files, tmp_path / "b", columns=TABLES).fingerprint == (
        data.fingerprint
    )


def test_the_same_names_need_no_mapping(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", SHOP[:90], "session,item,time")
    frame(SHOP[90:]).write_parquet(tmp_path / "b.parquet")
    data = same([log, tmp_path / "b.parquet"], tmp_path)
    assert data is not None
    assert data.manifest["counts"]["clicks"] == 180


def test_a_table_also_gives_the_format(tmp_path: Path) -> None:
    lines = ["visit|item|time", *(f"{s}|{item}|{time}" for s, item, time in SHOP)]
    log = write_lines(tmp_path / "export.txt", lines)
    table = {"format": "csv", "delimiter": "|", "session": "visit", "time_unit": "ms"}
    other = write_log(tmp_path / "b.csv", small_shop(5, start=1_800_000_000_000))
    progress = RecordingProgress()
    columns = {"./export.*": table}
    data = prepared([log, other], tmp_path / "out", progress, columns=columns)
    assert data.manifest["steps"][0]["clicks"] == 195
    assert "export.txt: column 'item' read as the item" in progress.messages


def test_a_user_is_not_a_session_of_the_same_name(tmp_path: Path) -> None:
    """`a` is a session in one file and a user in the others, whose clicks are split."""
    sessions = write_lines(tmp_path / "a.csv", ["sid,item,time", "a,x,0", "a,y,90000"])
    users = [
        write_lines(tmp_path / "b.csv", ["user,item,time", "a,y,10", "a,x,90010"]),
        write_lines(tmp_path / "c.jsonl", ['{"user": "a", "item": "z", "time": 20}']),
    ]
    data = same(
        [sessions, *users],
        tmp_path,
        time_unit="s",
        gap="30m",
        min_length=2,
        **EVERY_CLICK,
    )
    assert data is not None
    assert raw(data.train, data.vocabulary) == [["x", "y"], ["y", "z"]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"*.csv": {"sesion": "a"}},
            "columns: sesion = 'a' can't be used; write a table",
        ),
        ({"*.csv": {"item": ["a"]}}, r"item = \['a'\] can't be used"),
        ({"session": "sid"}, "session = 'sid' can't be used; write a table"),
        ({"*.csv": {"format": "json"}}, "format 'json' is not known"),
        ({"*.csv": {"item": "sku"}}, "a.csv has no column 'sku'"),
    ],
)
def test_mappings_that_are_refused(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    log = write_log(tmp_path / "a.csv", SHOP)
    with pytest.raises(InputError, match=message):
        prepared(log, tmp_path / "out", columns=columns)


def test_mapping_files_that_are_refused_and_patterns_of_no_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", SHOP)
    broken = write_lines(tmp_path / "mapping.toml", ["[hours"])
    with pytest.raises(InputError, match=r"mapping\.toml is not a TOML file \(Expec"):
        prepared(log, tmp_path / "out", columns=broken)
    with pytest.raises(InputError, match=r"none\.toml does not exist"):
        prepared(log, tmp_path / "out", columns=tmp_path / "none.toml")
    with pytest.raises(InputError, match="--columns can't be used"):
        prepared(frame(SHOP), tmp_path / "out", columns=TABLES)
    progress = RecordingProgress()
    prepared(log, tmp_path / "out", progress, columns={"b.csv": {"item": "sku"}})
    assert "warning: no file is like 'b.csv', a table of --columns" in progress.messages


def test_both_files_of_a_split_may_have_a_table(tmp_path: Path) -> None:
    log = write_log(tmp_path / "train.csv", SHOP, "visit,sku,time")
    test = write_log(tmp_path / "test.csv", SHOP[:30], "sid,article,time")
    columns = {
        "train.csv": {"session": "visit", "item": "sku"},
        "test.csv": {"session": "sid", "item": "article"},
    }
    progress = RecordingProgress()
    data = prepared(log, tmp_path / "out", progress, test=test, columns=columns)
    assert (data.train.clicks, data.test.clicks) == (len(SHOP), 30)
    assert not [text for text in progress.messages if "no file is like" in text]


def test_files_that_cannot_be_prepared_together(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", SHOP)
    lines = write_lines(tmp_path / "b.txt", ["1 2 3", "2 3 4"])
    message = r"b\.txt is read as sessions, and other files are not, so they can't be"
    with pytest.raises(InputError, match=message):
        prepared([log, lines], tmp_path / "out")


def test_files_with_other_columns_are_told_of_the_mapping(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="have columns of their own, name them with --columns"
    ):
        prepared(write_both(tmp_path), tmp_path / "out", session_column="ctx.sid")


@pytest.mark.parametrize("limit", [0.01, 1])
def test_a_file_of_which_nothing_is_read_is_an_error(
    tmp_path: Path, limit: float
) -> None:
    """A week of another format in a log whose format was named, with few lines of it."""
    log = write_lines(
        tmp_path / "a.jsonl",
        [json.dumps({"sid": s, "item": i, "time": t}) for s, i, t in small_shop(2000)],
    )
    week = write_week(tmp_path / "week2.parquet", SHOP)
    options: dict[str, Any] = {"bad_lines": "skip", "bad_lines_limit": limit}
    with pytest.raises(
        InputError,
        match=r"week2\.parquet: 7 of 7 lines .* leave the file out, or describe it",
    ):
        prepared([log, week], tmp_path / "out", format="jsonl", **options)


def test_the_limit_of_broken_lines_is_that_of_each_file(tmp_path: Path) -> None:
    broken: Any = [("s1", "", 5), ("s2", "", 6)]
    large = write_log(tmp_path / "a.csv", small_shop(2000))
    small = write_log(tmp_path / "b.csv", [*SHOP[:98], *broken])
    message = r"b\.csv: 2 of 100 lines \(2\.00%\) are broken, more than 1\.00%"
    with pytest.raises(InputError, match=message):
        prepared([large, small], tmp_path / "out", bad_lines="skip")
    options: dict[str, Any] = {"bad_lines": "skip", "bad_lines_limit": 0.02}
    data = prepared([large, small], tmp_path / "out", **options)
    assert data.manifest["log"]["bad_lines"] == 2
    # The last line of a short file may be cut off.
    cut = write_log(tmp_path / "b.csv", [*SHOP[:9], *broken[:1]])
    data = prepared([large, cut], tmp_path / "out", bad_lines="skip")
    assert data.manifest["log"]["bad_lines"] == 1


def test_an_hour_that_begins_with_a_broken_line_or_is_empty(tmp_path: Path) -> None:
    hours = [write_hour(tmp_path / f"hours/0{n}.jsonl.gz", SHOP) for n in range(3)]
    whole = gzip.decompress(hours[1].read_bytes())
    hours[1].write_bytes(gzip.compress(b'id": 5}\n' + whole))
    hours[2].write_bytes(gzip.compress(b""))
    columns = {"*": TABLES["hours/*.jsonl.gz"]}
    data = prepared(hours, tmp_path / "out", columns=columns, bad_lines="skip")
    assert data.manifest["log"]["bad_lines"] == 1
    assert data.manifest["steps"][0]["clicks"] == 360


def test_nested_columns_of_tables(tmp_path: Path) -> None:
    clicks = [
        {
            "ctx": {"visit": {"session_id": s}},
            "item": {"id": item},
            "event": {"time": time},
        }
        for s, item, time in SHOP
    ]
    table = pl.DataFrame(clicks)
    table.write_parquet(tmp_path / "log.parquet")
    options: dict[str, Any] = {"session_column": "ctx.visit.session_id"}
    expected = prepared(frame(SHOP), tmp_path / "out").fingerprint
    progress = RecordingProgress()
    for source in (
        table,
        table.to_pandas(),
        table.to_arrow(),
        tmp_path / "log.parquet",
    ):
        data = prepared(source, tmp_path / "out", progress, **options)
        assert data.fingerprint == expected
    assert "table: column 'item.id' read as the item" in progress.messages
    guessed = table.unnest("ctx").rename({"visit": "the visit"})
    guessed = guessed.with_columns(pl.col("the visit").struct.rename_fields(["sid"]))
    with pytest.raises(
        InputError, match=r"it has the visit\.sid, item\.id, event\.time"
    ):
        prepared(guessed, tmp_path / "out", **options)
