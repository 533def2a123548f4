"""The user's files as blocks of whole lines."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from posrec.data.source import blocks
from posrec.data.source.blocks import blocks as read_blocks
from posrec.data.source.files import read_whole
from posrec.errors import InputError
from posrec.progress import SilentProgress
from tests.helpers import packed


@given(
    # No line begins like a compressed file or a byte order mark, which would be read as one.
    st.lists(
        st.binary(max_size=20).map(lambda line: line.lstrip(b"\xef\x1f\x28\xfdB")),
        max_size=20,
    ),
    st.integers(1, 64),
    st.sampled_from([None, "gzip", "zstd", "bz2", "xz"]),
)
def test_blocks_are_whole_lines_and_nothing_is_lost(
    tmp_path: Path, lines: list[bytes], size: int, compression: str | None
) -> None:
    content = b"\n".join(lines) + b"x"
    path = tmp_path / "log"
    path.write_bytes(packed(content, compression))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        read = list(read_blocks([path], SilentProgress()))
    assert b"".join(block.data for block in read) == content == read_whole(path)
    lines_before = 0
    for block in read:
        assert block.first_line == lines_before + 1
        lines_before += block.data.count(b"\n")
        assert block.data.endswith(b"\n") or block is read[-1]


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_a_truncated_archive_is_never_taken_for_a_whole_one(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    archive = packed(content, data.draw(st.sampled_from(["gzip", "zstd", "bz2", "xz"])))
    path = tmp_path / "log"
    path.write_bytes(archive[: data.draw(st.integers(6, len(archive) - 1))])
    with pytest.raises(InputError, match="cut short or damaged"):
        list(read_blocks([path], SilentProgress()))
