"""Ids of sessions in memory: numbers where every id is the text of its number, texts otherwise."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.readers.clicks import ClickCollector
from posrec.data.readers.options import LogOptions
from posrec.data.readers.store import NUMBER
from posrec.progress import SilentProgress
from tests.data import strategies

numbers = st.integers(0, 2**33).map(str) | st.sampled_from(["0", "9", "10", "4294967295", "4294967296"])
similar = st.sampled_from(["7", "07", "007", "+7", "7.0", "7e0", " 7", "7 ", "0x7", "0", "00", "7_0"])


def read(blocks: list[list[str]], dtype: type[pl.DataType] = pl.String) -> pl.Series:
    """The session ids that a collector keeps of blocks with these."""
    collector = ClickCollector(SilentProgress(), LogOptions(bad_lines="skip"))
    for ids in blocks:
        sessions = pl.Series("session", ids, dtype=pl.String).cast(dtype)
        collector.keep(collector.check(pl.DataFrame({"session": sessions, "item": ["i"] * len(ids), "time": 0})))
    return collector.parsed_log().clicks["session"]


@given(st.lists(st.lists(numbers | similar | strategies.any_id, max_size=6), max_size=4))
def test_every_id_comes_back_as_it_was(blocks: list[list[str]]) -> None:
    assert read(blocks).cast(pl.String).to_list() == [text for ids in blocks for text in ids]


def test_numbers_are_held_as_numbers() -> None:
    assert read([["1", "20"], ["300", "0"]]).dtype == NUMBER
    assert read([["1", "20"], ["300", "0"]], pl.Int64).dtype == NUMBER


@pytest.mark.parametrize("other", ["a", "01", "+1", "4294967296"])
def test_the_first_other_text_changes_the_ids_before_it(other: str) -> None:
    sessions = read([["1", "20"], ["3", other], ["1"]])
    assert isinstance(sessions.dtype, pl.Categorical)
    assert sessions.cast(pl.String).to_list() == ["1", "20", "3", other, "1"]


@pytest.mark.parametrize("bad", ["", "-1", None])
def test_an_id_that_is_left_out_changes_nothing(bad: str | None) -> None:
    collector = ClickCollector(SilentProgress())
    checked = collector.check(pl.DataFrame({"session": ["1", bad, "20"], "item": "i", "time": 0}))
    assert checked.bad_rows == [1]
    assert checked.clicks["session"].to_list() == [1, 20]
    assert checked.clicks["session"].dtype == NUMBER
