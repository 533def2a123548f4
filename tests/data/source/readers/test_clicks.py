"""Ids of sessions in memory: they come back as they were."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.source.readers.clicks import ClickCollector, ClickStore
from posrec.data.source.readers.options import LogOptions
from posrec.progress import SilentProgress
from tests.data import strategies

similar = st.sampled_from(["7", "07", "007", "+7", "7.0", "7e0", " 7", "7 ", "0x7", "0", "00", "7_0"])


@given(st.lists(st.lists(similar | strategies.any_id, max_size=6), max_size=4))
def test_every_id_comes_back_as_it_was(blocks: list[list[str]]) -> None:
    collector = ClickCollector(SilentProgress(), LogOptions(bad_lines="skip"), ClickStore())
    for ids in blocks:
        sessions = pl.Series("session", ids, dtype=pl.String)
        collector.keep(collector.check(pl.DataFrame({"session": sessions, "item": ["i"] * len(ids), "time": 0})))
    found = collector.store.take()["session"].cast(pl.String)
    assert found.to_list() == [text for ids in blocks for text in ids]


@pytest.mark.parametrize("bad", ["", "-1", None])
def test_an_id_that_is_missing_or_negative_is_left_out(bad: str | None) -> None:
    collector = ClickCollector(SilentProgress(), LogOptions(), ClickStore())
    checked = collector.check(pl.DataFrame({"session": ["1", bad, "20"], "item": "i", "time": 0}))
    assert checked.bad_rows == [1]
    assert checked.clicks["session"].to_list() == ["1", "20"]
