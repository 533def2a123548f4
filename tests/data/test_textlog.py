"""Finding the line to blame."""

from pathlib import Path

import pytest

from posrec.data.sources import Block
from posrec.data.textlog import Columns, TextLayout, complaint, header_of
from posrec.errors import InputError

LAYOUT = TextLayout(",", quote='"')
NAMES, COLUMNS = ["s", "i", "t"], Columns("s", "i", "t")


def test_a_row_that_nobody_can_explain_is_still_an_error() -> None:
    complain = complaint(Block(Path("log"), b"1,2,3\n\n4,5,6\n", 10), LAYOUT, NAMES, COLUMNS, ())
    with pytest.raises(InputError, match="log, between lines 10 and 12: the lines can't be told apart"):
        complain(0, {})
    complain(None, {})  # only blank lines were in question, and blank they are
    with pytest.raises(InputError, match="log, line 12: '6' in column 't' is no time"):
        complain(2, {"time": {"6"}})
    complain(None, {"date": {"6"}})  # a bad date elsewhere is not this line's time


def test_a_header_in_another_order_is_refused() -> None:
    layout = TextLayout(",", names=("session", "time", "item"))
    with pytest.raises(InputError, match="log, line 1: the header is session_id, item, time, but this format has"):
        header_of(Block(Path("log"), b"session_id,item,time\n1,2,3\n", 1), layout)


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
    found, below = header_of(Block(Path("log"), data, 1), layout)
    assert (found, below.data) == (names, rest)
    assert below.first_line == (1 if rest == data else 2)
