"""Files of item ids, as people's programs write them."""

import codecs
import json
import tracemalloc
from pathlib import Path

import pytest

from posrec.errors import InputError
from posrec.recommend.session import ListedIds
from tests.helpers import command, write_lines


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "ids.txt").write_bytes(mark + "i1\r\n\r\n zürich \n\ni2\ri3".encode())
    assert list(ListedIds(tmp_path / "ids.txt")) == ["i1", "zürich", "i2", "i3"]


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"]
)
def test_other_encodings_are_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "ids.txt").write_bytes("i1\nzürich\n".encode(encoding))
    with pytest.raises(InputError, match=r"ids\.txt is not UTF-8 text"):
        ListedIds(tmp_path / "ids.txt")


def test_many_ids_take_the_memory_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("".join(f"i{number:07d}\n" for number in range(100_000)))
    tracemalloc.start()
    ids = ListedIds(path)
    known, note = ids.known({"i0000003": 3}.get)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * path.stat().st_size
    assert (known, ids.number) == (["i0000003"], 100_000)
    first = ", ".join(f"i000000{number}" for number in (0, 1, 2, 4, 5))
    assert f"does not know 99,999 of 100,000 ids: {first} and 99,994 more" in str(note)


def test_commands_warn_of_unknown_ids(trained: Path, tmp_path: Path) -> None:
    ids = write_lines(tmp_path / "ids.txt", ["i5", "'i6'", "'i7'"])
    sessions = write_lines(tmp_path / "sessions.jsonl", ['{"session": ["i3"]}'])
    out = tmp_path / "out.jsonl"
    asked = command("recommend", trained, "i3", "--deny", ids, "--json")
    scored = command("score", trained, sessions, out, "--allow", ids)
    for done in (asked, scored):
        assert done.code == 0, done.err
        assert "ids.txt: the run does not know 2 of 3 ids: 'i6', 'i7';" in done.err
    assert "i5" not in [item["item"] for item in json.loads(asked.out)["items"]]
    assert json.loads(out.read_text())["items"] == ["i5"]
