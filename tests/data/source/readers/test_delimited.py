"""Delimited text: headers, records, and the search for the line that is wrong."""

from pathlib import Path

import polars as pl
import pytest

from posrec.data.source.blocks import Block
from posrec.data.source.readers.block_reader import add_block
from posrec.data.source.readers.clicks import ClickCollector, ClickStore
from posrec.data.source.readers.columns import Columns
from posrec.data.source.readers.delimited import Record, TextBlocks, TextLayout, split_header
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from posrec.progress import SilentProgress

LAYOUT = TextLayout(",", quote='"')
NAMES, COLUMNS = ["s", "i", "t"], Columns(("s",), "i", "t")


def broken(data: bytes, **bad_times: set[str]) -> list[tuple[int, str]]:
    block = Block(Path("log"), data, 10)
    return [(line.number, line.reason) for line in TextBlocks(LAYOUT, NAMES, COLUMNS, ()).find_broken(block, bad_times)]


def test_broken_lines_are_found_by_their_numbers() -> None:
    assert broken(b"1,2,3\n\n4,5,6\n") == []
    assert broken(b"1,2,3\n\n4,5,6\n", time={"6"}) == [(12, "'6' in column 't' is not a time")]
    assert broken(b"1,2,3\n\n4,5,6\n", date={"6"}) == []  # a bad date elsewhere says nothing about this line's time
    assert [number for number, _ in broken(b"1,2\n,2,3\n1,2,3,4\n5,-1,7\n1,2,3\n")] == [10, 11, 12, 13]


def test_a_record_of_several_lines_loses_its_first_line_only() -> None:
    """The others may be good lines that a stray quote has joined to it."""
    assert broken(b'1,"2\n3,4,5\n6,7,8\n') == [(10, "2 fields where 3 are expected, a comma between them")]


def test_a_block_that_can_not_be_parsed_although_its_lines_look_right() -> None:
    def parse(block: Block) -> tuple[pl.DataFrame, bool]:
        raise pl.exceptions.ComputeError("no")

    block, collector = (
        Block(Path("log"), b"1,2,3\n\n4,5,6\n", 10),
        ClickCollector(SilentProgress(), LogOptions(), ClickStore()),
    )
    blocks = TextBlocks(LAYOUT, NAMES, COLUMNS, ())
    with pytest.raises(InputError, match="log, between lines 10 and 12: the lines can't be separated"):
        add_block(block, parse, blocks.find_broken, collector, "the lines can't be separated")


def test_a_header_in_another_order_is_refused() -> None:
    layout = TextLayout(",", names=("session", "time", "item"))
    with pytest.raises(InputError, match="log, line 1: the header is session_id, item, time, but this format has"):
        split_header(Block(Path("log"), b"session_id,item,time\n1,2,3\n", 1), layout)


def test_records_know_their_line() -> None:
    block = Block(Path("log"), b'a,"b\nc"\r\n\r\n"d ""e""",f', 5)
    assert list(LAYOUT.records(block)) == [Record(5, 2, ["a", "b\nc"]), Record(8, 1, ['d "e"', "f"])]


@pytest.mark.parametrize(
    ("layout", "data", "names", "rest"),
    [
        (LAYOUT, b'"a", b \r\n1,2\n', ["a", "b"], b"1,2\n"),
        (TextLayout("\t", typed=True), b"a:token\tb:float\n", ["a", "b"], b""),
        (TextLayout(",", names=("session", "item")), b"SESSION_ID,Item\n1,2\n", ["session", "item"], b"1,2\n"),
        (TextLayout(",", names=("session", "item")), b"1,2\n", ["session", "item"], b"1,2\n"),
    ],
)
def test_headers(layout: TextLayout, data: bytes, names: list[str], rest: bytes) -> None:
    found, below = split_header(Block(Path("log"), data, 1), layout)
    assert (found, below.data) == (names, rest)
    assert below.first_line == (1 if rest == data else 2)
