"""The user's files as blocks of whole lines."""

import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from posrec.data.source import blocks
from posrec.data.source.blocks import blocks as read_blocks
from posrec.data.source.blocks import read_whole
from posrec.errors import InputError
from posrec.progress import SilentProgress


@given(
    # No line begins like a compressed file or a byte order mark, which would be read as one.
    st.lists(st.binary(max_size=20).map(lambda line: line.lstrip(b"\xef\x1f\x28")), max_size=20),
    st.integers(1, 64),
    st.sampled_from([bytes, gzip.compress, zstandard.compress]),
)
def test_blocks_are_whole_lines_and_nothing_is_lost(tmp_path: Path, lines: list[bytes], size: int, pack) -> None:  # type: ignore[no-untyped-def]
    content = b"\n".join(lines) + b"x"
    path = tmp_path / "log"
    path.write_bytes(pack(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        found = list(read_blocks([path], SilentProgress()))
    assert b"".join(block.data for block in found) == content == read_whole(path)
    before = 0
    for block in found:
        assert block.first_line == before + 1
        before += block.data.count(b"\n")
        assert block.data.endswith(b"\n") or block is found[-1]


def test_a_quoted_line_break_does_not_end_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'a,"1\n2\n3"\nb,"4"\n')
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    assert [block.data for block in read_blocks([path], SilentProgress(), quoted=True)] == [
        b'a,"1\n2\n3"\n',
        b'b,"4"\n',
    ]
    assert len(list(read_blocks([path], SilentProgress()))) == 4


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_a_truncated_archive_is_never_taken_for_a_whole_one(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    pack = data.draw(st.sampled_from([gzip.compress, zstandard.compress]))
    whole = pack(content)
    path = tmp_path / "log"
    path.write_bytes(whole[: data.draw(st.integers(5, len(whole) - 1))])
    with pytest.raises(InputError, match="cut short or damaged"):
        list(read_blocks([path], SilentProgress()))
