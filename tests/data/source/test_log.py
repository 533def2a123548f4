"""Logs from standard input and tables, of composite sessions and of users; and warnings."""

import gzip
import io
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import posrec
from posrec.errors import InputError
from tests.data.reading import prepared
from tests.faults.refusals import HEADER
from tests.helpers import (
    RecordingProgress,
    frame,
    raw,
    small_shop,
    write_lines,
    write_log,
)

DAY = 86_400_000
START = 1_700_000_000_000


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    content = log.read_bytes()
    give(monkeypatch, gzip.compress(content) if packed else content)
    data = prepared("-", tmp_path / "out")
    assert data.fingerprint == prepared(log, tmp_path / "file").fingerprint
    assert data.manifest["source"] == ["standard input"]


def test_errors_call_it_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, f"{HEADER}\ns1,i1,never\n".encode())
    with pytest.raises(InputError, match=r"^standard input, line 2: 'never'"):
        prepared("-", tmp_path / "out")
    give(monkeypatch, b"")
    with pytest.raises(InputError, match=r"^standard input is empty"):
        prepared(["-"], tmp_path / "out")


def test_tables_of_every_kind_give_what_the_file_gives(tmp_path: Path) -> None:
    clicks = small_shop()
    log = write_log(tmp_path / "a.csv", clicks)
    expected = prepared(log, tmp_path / "file", time_unit="ms").fingerprint
    table = frame(clicks)
    pandas = pd.DataFrame(clicks, columns=["session", "item", "time"])
    moments = pd.to_datetime(pandas["time"], unit="ms")
    tables = [
        table,
        table.lazy(),
        pandas,
        table.to_arrow(),
        pa.Table.from_pandas(pandas),
        pandas.convert_dtypes(),
        pandas.assign(time=moments),
        table.to_arrow().to_reader(),
    ]
    for source in tables:
        data = prepared(source, tmp_path / "out")
        assert data.fingerprint == expected, type(source)
        assert data.manifest["format"] == "table"
        assert data.manifest["source"] == ["table"]


CLICK = frame([("a", "b", 1)])
MIXED = pd.DataFrame({"session": ["a", 1], "item": [1, 2], "time": [1, 2]})


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (7, {}, r"not builtins\.int"),
        (CLICK, {"format": "csv"}, "a table in memory has no format"),
        (CLICK, {"delimiter": ";"}, "--delimiter can't be used"),
        (CLICK, {"item_column": "x"}, "table has no column 'x'"),
        (frame([]), {}, "table holds no clicks"),
        (MIXED, {}, "the table can't be read"),
    ],
)
def test_tables_that_are_refused(
    tmp_path: Path, source: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prepared(source, tmp_path / "out", **options)


def test_the_folder_must_be_named() -> None:
    with pytest.raises(TypeError, match="needs out"):
        posrec.prepare(frame([]))


def test_a_composite_session(tmp_path: Path) -> None:
    clicks = "u1,1,a,1 u11,1,b,2 u1,1,b,3 u1,11,c,4 u11,1,c,5 u1,11,d,6"
    lines = ["user,number,item,time", *clicks.split()]
    log = write_lines(tmp_path / "a.csv", lines)
    columns = ["user", "number"]
    options: Any = {"session_column": columns, "min_support": 1, "no_test": True}
    data = prepared(log, tmp_path / "out", **options)
    assert raw(data.train, data.vocabulary) == [["a", "b"], ["b", "c"], ["c", "d"]]
    for broken in ("u1,,a,7", ",1,a,7", "u1,-1,a,7"):
        log = write_lines(tmp_path / "b.csv", [*lines, broken])
        with pytest.raises(InputError, match="line 8: the session"):
            prepared(log, tmp_path / "no", **options)


def customers() -> list[tuple[str, str, int]]:
    """Ten customers who come back every day for two weeks for three clicks."""
    clicks = []
    for day, who, step in product(range(14), range(10), range(3)):
        time = START + day * DAY + who * 3_600_000 + step * 60_000
        clicks.append((f"c{who}", f"i{(who + step) % 4}", time))
    return clicks


def test_sessions_that_last_for_days_are_warned_of(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", customers(), "customer,item,time")
    progress = RecordingProgress()
    options: dict[str, Any] = {"min_support": 1, "time_unit": "ms"}
    out = tmp_path / "out"
    long = prepared(log, out, progress, session_column="customer", **options)
    assert long.train.longest == 42
    (warning,) = [text for text in progress.messages if text.startswith("warning")]
    assert "10 of 10 sessions last longer than a day" in warning
    assert "--user-column customer" in warning
    progress = RecordingProgress()
    split = prepared(log, out, progress, user_column="customer", **options)
    assert split.train.longest == 3
    assert split.train.sessions + split.test.sessions == 140
    assert any("after 30m of inactivity" in text for text in progress.messages)
    assert not any(text.startswith("warning") for text in progress.messages)
    joined = prepared(log, out, user_column="customer", gap="3d", **options)
    assert joined.train.longest == 42
    one_long = frame([*small_shop(200), ("s0", "i1", START + 3 * DAY)])
    assert prepared(one_long, out).manifest["warnings"] == []


def test_a_small_log_is_told_what_to_change(tmp_path: Path) -> None:
    progress = RecordingProgress()
    pairs = product(range(50), range(2))
    rare = [(f"r{n}", f"rare{n + step}", START + step) for n, step in pairs]
    prepared(frame([*small_shop(), *rare]), tmp_path / "a", progress)
    assert progress.messages[-1].startswith("only 54 training samples are left")
    assert progress.messages[-1].endswith("removed 100 clicks")
    progress = RecordingProgress()
    prepared(frame(small_shop(600)), tmp_path / "b", progress)
    assert not any("training samples are left" in text for text in progress.messages)


@pytest.mark.parametrize("recipe", ["clean", "paper"])
def test_without_a_test_part_every_session_is_for_training(
    tmp_path: Path, recipe: str
) -> None:
    shop = frame(small_shop(60))
    data = prepared(shop, tmp_path / "data", no_test=True, recipe=recipe)
    assert (data.train.sessions, data.test.sessions, len(data.test)) == (60, 0, 0)
    assert data.validation.sessions == 6
    assert posrec.load(data.path).fingerprint == data.fingerprint
    half = prepared(shop, tmp_path / "half", no_test=True, fraction="1/2")
    assert len(half.train) == 60
