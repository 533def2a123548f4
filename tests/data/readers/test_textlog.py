"""Delimited text: headers, records, and the search for the line that is wrong."""

from pathlib import Path

import pytest

from posrec.data.readers.columns import Columns
from posrec.data.readers.textlog import TextLayout, line_finder, split_header
from posrec.data.sources import Block
from posrec.errors import InputError

LAYOUT = TextLayout(",", quote='"')
NAMES, COLUMNS = ["s", "i", "t"], Columns("s", "i", "t")


def test_a_bad_row_whose_lines_all_look_right_is_still_an_error() -> None:
    raise_for_row = line_finder(Block(Path("log"), b"1,2,3\n\n4,5,6\n", 10), LAYOUT, NAMES, COLUMNS, ())
    with pytest.raises(InputError, match="log, between lines 10 and 12: the lines can't be separated"):
        raise_for_row(0, {})
    raise_for_row(None, {})  # no line but the blank ones can be bad, and they are blank
    with pytest.raises(InputError, match="log, line 12: '6' in column 't' is not a time"):
        raise_for_row(2, {"time": {"6"}})
    raise_for_row(None, {"date": {"6"}})  # a bad date elsewhere says nothing about this line's time


def test_a_header_in_another_order_is_refused() -> None:
    layout = TextLayout(",", names=("session", "time", "item"))
    with pytest.raises(InputError, match="log, line 1: the header is session_id, item, time, but this format has"):
        split_header(Block(Path("log"), b"session_id,item,time\n1,2,3\n", 1), layout)


def test_records_know_their_line() -> None:
    block = Block(Path("log"), b'a,"b\nc"\r\n\r\n"d ""e""",f', 5)
    assert list(LAYOUT.records(block)) == [(5, ["a", "b\nc"]), (8, ['d "e"', "f"])]


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
