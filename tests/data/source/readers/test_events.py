"""Kinds of events: which are listed, missing, and read by default."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posrec.data.prepare.options import split_options
from posrec.data.source.readers.events import MAX_KINDS
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from tests.data.reading import ReadClicks, read_clicks
from tests.faults.refusals import EVENTS
from tests.helpers import RecordingProgress, write_lines

CLICKS = [
    "1,a,1,view",
    "1,b,2,view",
    "1,b,3,cart",
    "1,,4,",
    "1,b,5,purchase",
    "2,a,6,view",
]
LINES = ["session,item,time,action", *CLICKS]


def read(
    path: Path, lines: list[str], format: str = "csv", **options: Any
) -> tuple[ReadClicks, list[str]]:
    progress = RecordingProgress()
    log = write_lines(path / "log.csv", lines)
    log_options, _ = split_options(options)
    parsed = read_clicks(format, [log], log_options, progress)
    return parsed, [text for text in progress.messages if "event" in text]


def test_kinds_are_listed_where_none_are_chosen(tmp_path: Path) -> None:
    lines = [line for line in LINES if not line.endswith(",")]
    parsed, messages = read(tmp_path, lines)
    assert "view 3, cart 1, purchase 1; all are read" in messages[0]
    assert len(parsed.clicks) == 5
    assert parsed.events == {"view": 3, "cart": 1, "purchase": 1}
    assert parsed.clicks.columns == ["session", "item", "time"]


def test_an_unknown_kind_lists_those_present(tmp_path: Path) -> None:
    lines = [*LINES, "1,b,never,cart"]  # other kinds may be broken
    _, messages = read(tmp_path, lines, events="view, crat")
    assert messages[0] == "log.csv: column 'action' read as the event"
    assert messages[1].startswith("warning: --events names 'crat'")
    assert messages[1].endswith("view 3, cart 2, purchase 1")
    assert messages[2].startswith("kept 3 of 7 rows")
    with pytest.raises(InputError, match=r"none of 6 rows .* has view 3, cart 1"):
        read(tmp_path, LINES, events=["crat"])
    _, messages = read(tmp_path, LINES, events="view,cart", event_weights="cart=3")
    assert not any("warning" in text for text in messages)


def test_a_column_of_too_many_values_is_not_one_of_kinds(tmp_path: Path) -> None:
    clicks = [f"1,a,{number},t{number}" for number in range(MAX_KINDS + 1)]
    parsed, messages = read(tmp_path, ["session,item,time,type", *clicks])
    assert "too many to be kinds of events" in messages[0]
    assert len(parsed.clicks) == MAX_KINDS + 1


def test_a_format_with_a_default_reads_what_is_named_too(tmp_path: Path) -> None:
    lines = [*EVENTS, "99,1,transaction,3,7", "99,1,addtocart,3,"]
    parsed, _ = read(tmp_path, lines, "retailrocket", target_events="transaction")
    assert (len(parsed.clicks), parsed.clicks["target"].sum()) == (151, 1)


def test_kinds_of_any_type_in_a_table(tmp_path: Path) -> None:
    columns = {"session": [1, 1, 1], "item": [1, 2, 1], "time": [1, 2, 3]}
    table = tmp_path / "log.parquet"
    for kinds in ([3, 4, 4], pl.Series(["3", "4", "4"], dtype=pl.Categorical)):
        pl.DataFrame({**columns, "event": kinds}).write_parquet(table)
        parsed = read_clicks("parquet", [table], LogOptions(events=["4"]))
        assert parsed.clicks["item"].to_list() == ["2", "1"]
        assert parsed.events == {"4": 2, "3": 1}
    pl.DataFrame({**columns, "event": [["view"], [], ["cart"]]}).write_parquet(table)
    parsed = read_clicks("parquet", [table])
    assert (len(parsed.clicks), parsed.events) == (3, {})


def test_a_column_with_another_role_is_not_taken_for_the_kinds(tmp_path: Path) -> None:
    lines = ["session,type,time", "1,a,1", "1,b,2"]
    parsed, messages = read(tmp_path, lines, item_column="type")
    assert (parsed.clicks["item"].to_list(), messages) == (["a", "b"], [])
