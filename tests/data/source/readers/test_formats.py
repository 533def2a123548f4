"""Every format, read from files: in one block or many, compressed or plain."""

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, strategies as st

from posrec.data.source import blocks
from posrec.data.source.files import find_files
from posrec.data.source.readers import parquet
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from tests.data.reading import read_clicks
from tests.faults.refusals import EVENTS, HEADER
from tests.helpers import (
    Click,
    RecordingProgress,
    frame,
    packed,
    rows,
    write_lines,
    write_log,
)

T = 1_396_867_869_277


def read(
    format: str, source: Any, progress: RecordingProgress | None = None, **options: Any
) -> list[Click]:
    files = find_files(source)
    return rows(read_clicks(format, files, LogOptions(**options), progress).clicks)


CLICKS = [("1", "20", T), ("2", "30", T + 5), ("1", "20", T), ("2", "007", T - 5)]
YOOCHOOSE = [f"{s},2014-04-07T10:51:09.{t - T + 277}Z,{i},0" for s, i, t in CLICKS]
WRITTEN: dict[str, list[str]] = {
    "yoochoose": YOOCHOOSE,
    "retailrocket": [EVENTS[0], *(f"{t},{s},view,{i}," for s, i, t in CLICKS)],
    "recbole": [
        "session_id:token\titem_id:token\ttimestamp:float",
        *(f"{s}\t{i}\t{t}" for s, i, t in CLICKS),
    ],
    "csv": [HEADER, *(f"{s},{i},{t}" for s, i, t in CLICKS)],
}


def write_as(path: Path, packing: str, text: bytes) -> Path:
    compression, _, twice = packing.partition(" ")
    chunks = [text[:20], text[20:]] if twice else [text]
    path.write_bytes(b"".join(packed(chunk, compression or None) for chunk in chunks))
    return path


@pytest.mark.parametrize(
    "packing", ["", "zstd", "bz2", "xz", "gzip twice", "zstd twice"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("format", list(WRITTEN))
def test_text_formats_compressed_and_with_any_line_ends(
    tmp_path: Path, format: str, packing: str, end: str
) -> None:
    text = end.join(WRITTEN[format])  # the last line often has no line end
    with_mark = "\ufeff" + text
    with_blank_lines = text.replace(end, end + end) + end + "  " + end
    for content in (text, with_mark, with_blank_lines):
        log = write_as(tmp_path / "log", packing, content.encode())
        assert read(format, log) == CLICKS


def test_yoochoose_with_a_header(tmp_path: Path) -> None:
    header = "session_id,timestamp,item_id,category"
    log = write_lines(tmp_path / "log", [header, *YOOCHOOSE])
    assert read("yoochoose", log) == CLICKS
    first = write_lines(tmp_path / "a", YOOCHOOSE[:1])
    assert read("yoochoose", [first, log])[1:] == CLICKS
    header = "session_id,item_id,timestamp,category"
    other = write_lines(tmp_path / "other", [header, *YOOCHOOSE])
    with pytest.raises(InputError, match="other, line 1: the header is"):
        read("yoochoose", other)


@pytest.mark.parametrize("ids", ["sessionId;userId;itemId", "session_id;user;item_id"])
def test_diginetica_is_ordered_by_timeframe_on_the_day_read_last(
    tmp_path: Path, ids: str
) -> None:
    lines = [
        f"{ids};timeframe;eventdate",
        "1;NA;20;5000;2016-05-09",
        "2;NA;30;10;2016-05-09",
        "1;7;007;2000;2016-05-10",
    ]
    clicks = read("diginetica", write_lines(tmp_path / "views.csv", lines))
    assert [click[:2] for click in clicks] == [("1", "20"), ("2", "30"), ("1", "007")]
    days = [time // 86_400_000 for _, _, time in clicks]
    ninth = (date(2016, 5, 9) - date(1970, 1, 1)).days
    assert days == [ninth + 1, ninth, ninth + 1]
    assert clicks[0][2] - clicks[2][2] == 3000


def test_retailrocket_reads_views_of_visitors(tmp_path: Path) -> None:
    lines = [*WRITTEN["retailrocket"], f"{T},9,transaction,5,77", f"{T},9,addtocart,5,"]
    log = write_lines(tmp_path / "events.csv", lines)
    progress = RecordingProgress()
    parsed = read_clicks("retailrocket", [log], LogOptions(), progress)
    assert (rows(parsed.clicks), parsed.by_user) == (CLICKS, True)
    assert "view 4, addtocart 1, transaction 1; view read" in progress.messages[0]
    clicks = read("retailrocket", log, events=["transaction", "view"])
    assert clicks == [*CLICKS, ("9", "5", T)]


def test_otto(tmp_path: Path) -> None:
    events = '{"aid":20,"ts":5,"type":"clicks"},{"aid":3,"ts":6,"type":"carts"}'
    lines = [
        f'{{"session":1,"events":[{events}]}}',
        "",
        '{"session":2,"events":[]}',
        '{"session":"x y","events":[{"type":"clicks","ts":7,"aid":"007","more":1}]}',
    ]
    log = write_lines(tmp_path / "train.jsonl", lines)
    assert read("otto", log) == [("1", "20", 5), ("x y", "007", 7)]
    assert read("otto", log, events=("carts",)) == [("1", "3", 6)]


def test_recbole_with_users_and_other_columns(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    log = write_lines(tmp_path / "a.inter", [header, 'u\t"q\t4.0\t1.5'])
    parsed = read_clicks("recbole", [log])
    assert (rows(parsed.clicks), parsed.by_user) == ([("u", '"q', 1500)], True)


def test_columns_are_guessed_and_reported(tmp_path: Path) -> None:
    lines = ["Visit-ID,Product ID,x,created_at", "1,2,3,4"]
    log = write_lines(tmp_path / "a.csv", lines)
    progress = RecordingProgress()
    assert read("csv", log, progress) == [("1", "2", 4000)]
    assert progress.messages == [
        "a.csv: column 'Visit-ID' read as the session",
        "a.csv: column 'Product ID' read as the item",
        "a.csv: column 'created_at' read as the time",
        "times read as seconds (pass --time-unit if that is wrong)",
    ]
    named = {
        "session_column": "x",
        "item_column": "Visit-ID",
        "time_column": "created_at",
    }
    silent = RecordingProgress()
    assert read("csv", log, silent, **named, time_unit="ms") == [("3", "1", 4)]
    assert silent.messages == []


def test_a_session_is_preferred_to_a_user(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", ["user_id,item,session_id,time", "u,i,s,1"])
    parsed = read_clicks("csv", [log])
    assert (rows(parsed.clicks), parsed.by_user) == ([("s", "i", 1000)], False)


field = st.text(st.sampled_from('ab,"\n é'), min_size=1, max_size=4).filter(
    lambda text: text.strip() != ""
)


@given(
    st.lists(st.tuples(field, field, st.integers(0, 99)), min_size=1, max_size=20),
    st.integers(1, 60),
    st.booleans(),
)
def test_small_blocks_read_the_same(
    tmp_path: Path, clicks: list[Click], size: int, crlf: bool
) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = ["session,item,time"]
    lines += [
        f"{quote(session)},{quote(item)},{time}" for session, item, time in clicks
    ]
    log = write_lines(tmp_path / "a.csv", lines, "\r\n" if crlf else "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        assert read("csv", log, time_unit="ms") == clicks


@pytest.mark.parametrize(
    "ids", [pl.Int32, pl.UInt64, pl.String, pl.Categorical, pl.Float64]
)
@pytest.mark.parametrize(
    "time",
    [pl.Int64, pl.String, pl.Datetime("us"), pl.Datetime("ns", "UTC"), pl.Float64],
)
def test_parquet_of_any_type(tmp_path: Path, ids: Any, time: Any) -> None:
    moments = pl.Series([T, T + 1000]).cast(pl.Datetime("ms"))
    texts = moments.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
    times = texts if time == pl.String else moments.cast(time)
    numbers = pl.Series(["11", "2"]).cast(ids)
    columns = {"sku": numbers, "session": numbers.reverse(), "ts": times}
    path = tmp_path / "a.parquet"
    pl.DataFrame({**columns, "more": [[1], []]}).write_parquet(path)
    first, second = ("11.0", "2.0") if ids == pl.Float64 else ("11", "2")
    clicks = [(second, first, T), (first, second, T + 1000)]
    assert read("parquet", path) == clicks
    path.write_bytes(packed(path.read_bytes()))
    assert read("parquet", path) == clicks


def test_parquet_batches_keep_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = [(str(number % 7), str(number), number) for number in range(1000)]
    path = tmp_path / "a.parquet"
    frame(clicks).write_parquet(path, row_group_size=64)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 100)
    progress = RecordingProgress()
    assert read("parquet", path, progress, time_unit="ms") == clicks
    assert progress.moves[-1] == ("Reading", 1, 1)
    assert len(progress.moves) > 5


def test_sessions_are_lines(tmp_path: Path) -> None:
    lines = ["1 2", "", "  007\té x\u00a0y  ", "1e5"]
    log = write_lines(tmp_path / "a.txt", lines, "\r\n")
    _, items, times = zip(*read("sessions", log), strict=True)
    assert items == ("1", "2", "007", "é", "x\u00a0y", "1e5")
    assert times == (0, 0, 2, 2, 2, 3)


def test_progress_moves_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "a.csv", [("s", f"i{n}", n) for n in range(5000)])
    archive = tmp_path / "b.csv.gz"
    archive.write_bytes(packed(log.read_bytes(), "gzip"))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    progress = RecordingProgress()
    read("csv", [log, archive], progress)
    done = [moved for _, moved, _ in progress.moves]
    total = log.stat().st_size + archive.stat().st_size
    assert {(work, size) for work, _, size in progress.moves} == {("Reading", total)}
    assert done == sorted(done)
    assert done[-1] == total
    assert len(set(done)) > 10


def test_ids_that_only_look_like_negative_numbers_are_ids(tmp_path: Path) -> None:
    clicks = [
        ("-x", "-", 1),
        ("--1", "-1e5", 2),
        ("-inf", "-nan", 3),
        ("1-2", "-1-", 4),
    ]
    assert read("csv", write_log(tmp_path / "a.csv", clicks), time_unit="ms") == clicks
