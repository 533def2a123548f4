"""Files of item ids, as people's programs write them."""

import codecs
from pathlib import Path

import pytest

from posrec.errors import InputError
from posrec.recommend.session import read_ids
from tests.helpers import command


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "ids.txt").write_bytes(mark + "i1\r\n\r\n zürich \n".encode())
    assert read_ids(tmp_path / "ids.txt") == ["i1", "zürich"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_other_encodings_are_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "ids.txt").write_bytes("i1\nzürich\n".encode(encoding))
    with pytest.raises(InputError, match=r"ids\.txt is not UTF-8 text .*; it must have one item id per line"):
        read_ids(tmp_path / "ids.txt")


def test_commands_warn_of_unknown_ids(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("i5\n'i6'\n'i7'\n")
    (tmp_path / "sessions.jsonl").write_text('{"session": ["i3"]}\n')
    asked = command("recommend", trained, "i3", "--deny", tmp_path / "ids.txt", "--json")
    scored = command(
        "score", trained, tmp_path / "sessions.jsonl", tmp_path / "o.jsonl", "--allow", tmp_path / "ids.txt"
    )
    for done in (asked, scored):
        assert done.code == 0, done.err
        assert "ids.txt: the run does not know 2 of 3 ids: 'i6', 'i7'; write ids as in the log" in done.err
