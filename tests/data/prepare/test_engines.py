"""A log in parts gives the same dataset as one in memory: for every format and recipe."""

import gzip
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

import posrec
from posrec.data.prepare import memory, steps
from posrec.data.prepare.parts import ClickParts, InMemory, Workplace
from posrec.data.source.log import open_log
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from posrec.progress import SilentProgress
from tests.data import strategies
from tests.data.reading import prepared
from tests.faults import refusals
from tests.helpers import (
    Click,
    RecordingProgress,
    frame,
    in_parts,
    small_shop,
    write_lines,
    write_log,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(
    source: Any, folder: Path, max_buffered: int = 1000, **options: Any
) -> posrec.PreparedDataset | None:
    """Prepare in one part and in several, and compare the folders, or the errors."""

    def result(out: Path) -> str | dict[str, bytes]:
        try:
            prepared(source, out, **options)
        except InputError as error:
            return str(error)
        return contents(out)

    in_memory = result(folder / "whole")
    with in_parts(max_buffered):
        assert result(folder / "parts") == in_memory
    assert not [path for path in folder.iterdir() if "unfinished" in path.name]
    return None if isinstance(in_memory, str) else posrec.load(folder / "whole")


@given(
    strategies.clicks.filter(len),
    st.fixed_dictionaries(
        {
            "min_support": st.integers(1, 3),
            "recipe": st.sampled_from(["clean", "paper"]),
        },
        optional={
            "gap": st.integers(1, 30 * strategies.HOUR),
            "no_test": st.just(True),
            "fraction": st.sampled_from(["1/2", "3/4"]),
            "test_days": st.sampled_from([0.25, 1]),
        },
    ),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=25)
def test_parts_give_what_memory_gives(
    tmp_path: Path,
    clicks: list[Click],
    options: dict[str, Any],
    several_files: bool,
    extras: bool,
) -> None:
    options = {**options, "format": "csv", "time_unit": "ms"}
    if options.get("no_test"):
        options.pop("test_days", None)
    if extras:
        options["event_weights"] = {"kind1": 2.0}
        options["target_events"] = ["kind1", "kind2", "kind3"]
    rows = [f"{session},{item},{time},kind{item[1:]}" for session, item, time in clicks]
    half = len(rows) // 2 if several_files else len(rows)
    files = []
    for name, lines in (("a.csv", rows[:half]), ("b.csv", rows[half:])):
        if lines:
            header = "session,item,time,event"
            files.append(write_lines(tmp_path / name, [header, *lines]))
    same(files, tmp_path, max_buffered=5, **options)  # several pieces for each part


FORMATS: dict[str, list[str]] = {
    "yoochoose": refusals.YOOCHOOSE,
    "diginetica": refusals.VIEWS,
    "retailrocket": refusals.EVENTS,
    "otto": refusals.OTTO,
    "recbole": ["session_id:token\titem_id:token\ttimestamp:float"]
    + [f"{n // 4}\t{n % 5}\t{n * 9e5}" for n in range(200)],
    "tsv": [line.replace(",", "\t") for line in (refusals.HEADER, *refusals.GOOD)],
    "jsonl": refusals.JSONL,
    "sessions": refusals.SESSIONS,
}


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(tmp_path: Path, format: str) -> None:
    log = write_lines(tmp_path / "log", FORMATS[format])
    log.write_bytes(gzip.compress(log.read_bytes()))
    data = same(log, tmp_path, format=format)
    assert data is not None
    assert data.train.sessions > 10


def test_parquet_a_table_and_srgnn(tmp_path: Path) -> None:
    table = frame(small_shop())
    table.write_parquet(tmp_path / "log.parquet")
    for source in (table, tmp_path / "log.parquet"):
        assert same(source, tmp_path) is not None
    log = tmp_path / "pickle"
    log.write_bytes(pickle.dumps([[n % 3 + 1, n % 4 + 1] for n in range(40)]))
    assert same(log, tmp_path, format="srgnn", min_support=1) is not None


def test_an_existing_split_and_titles(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.txt", ["1 2", "7", "3 4 5"] * 3)
    test = write_lines(tmp_path / "test.txt", ["2 9 1", "8", "9 4"])
    lines = ["id,title", "2,Tent", "99,Mat", "9,Rope"]
    items = write_lines(tmp_path / "items.csv", lines)
    split: dict[str, Any] = {"format": "sessions", "test": test}
    assert same(train, tmp_path, **split) is not None
    data = same(train, tmp_path, **split, items=items, all_items=True)
    assert data is not None
    assert data.vocabulary.title(2) == "Tent"
    assert "99" in data.vocabulary
    assert data.recommendable_items == 7


def test_bad_lines_are_left_out_by_both(tmp_path: Path) -> None:
    broken: list[Any] = [("x", "", 5), ("y", "i1", "never")]
    log = write_log(tmp_path / "log.csv", [*small_shop(), *broken])
    assert same(log, tmp_path) is None  # both stop, with the same words
    assert same(log, tmp_path, bad_lines="skip", bad_lines_limit=0.5) is not None
    bad_lines = (tmp_path / "whole.bad-lines.jsonl").read_text()
    assert bad_lines == (tmp_path / "parts.bad-lines.jsonl").read_text()
    assert bad_lines.count("\n") == 2


def test_a_log_that_is_too_large_is_prepared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log.csv", small_shop())
    in_memory = prepared(log, tmp_path / "a").fingerprint
    progress = RecordingProgress()
    monkeypatch.setattr(memory, "free_memory", lambda: memory.MIN_MEMORY + 1000)
    data = posrec.prepare(log, out=tmp_path / "b", progress=progress)
    (message,) = [text for text in progress.messages if "in parts" in text]
    assert "91 clicks" in message
    assert data.fingerprint == in_memory
    phases = list(dict.fromkeys(work for work, _, _ in progress.moves))
    assert phases[:3] == ["Reading", "Grouping sessions", "Filtering"]
    assert {"Sorting", "Numbering items", "Writing train sessions"} <= set(phases)


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"engine": "spark"}, "spark"),
        ({"memory": "lots"}, "not a size"),
        ({"memory": "1MB"}, "at least"),
        ({"address": "auto"}, "--address"),
    ],
)
def test_options_that_are_refused(
    tmp_path: Path, options: dict[str, Any], keyword: str
) -> None:
    log = write_log(tmp_path / "log.csv", small_shop())
    with pytest.raises(InputError, match=keyword):
        posrec.prepare(log, out=tmp_path / "out", **options)


def test_sizes() -> None:
    assert memory.parse_size("1.5 gb") == 1_500_000_000
    assert memory.parse_size("800MB") == 800_000_000
    assert memory.parse_size(10**9) == 10**9


@pytest.mark.parametrize(
    ("format", "clicks"), [("otto", 120), ("sessions", 160), ("yoochoose", 300)]
)
def test_clicks_are_estimated(tmp_path: Path, format: str, clicks: int) -> None:
    log = write_lines(tmp_path / "log", FORMATS[format])
    with open_log(log, format, LogOptions(), SilentProgress()) as opened:
        assert memory.estimate_clicks(opened) == pytest.approx(clicks, rel=0.6)


def test_files_of_parts_are_removed_as_they_are_used_up(tmp_path: Path) -> None:
    """So that the disk needs no more room than the log and one step's result of it."""
    item_numbers = pl.col("item").str.slice(1).cast(pl.UInt32)
    table = frame(small_shop()).with_columns(item_numbers).with_row_index("row")
    part_of_session = pl.col("session").hash(0) % 3
    parts = [InMemory(table.filter(part_of_session == number)) for number in range(3)]
    clicks = ClickParts(Workplace(tmp_path, 3), 10, parts)
    clicks = clicks.map(steps.group_sessions).sort_sessions()
    clicks = clicks.map(partial(steps.keep_lengths, minimum=1))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(clicks.parts)
