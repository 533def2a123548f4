"""The files of a log as blocks of whole lines, through which every text format is read."""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

from posrec.data.source.files import File, size_of, unpacked
from posrec.errors import InputError
from posrec.progress import Progress

BLOCK_BYTES = 32 << 20
LINE_BYTES = 16 << 20  # the longest line that is read; logs have a few kilobytes in one
QUOTED_LINES = 1000  # the most lines of a quoted field
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Whole lines of a file; `first_line` is the number of the first, from 1."""

    path: File
    data: bytes
    first_line: int


def blocks(
    files: Sequence[File], progress: Progress, quoted: bool = False
) -> Iterator[Block]:
    """Every file as blocks of whole lines; with `quoted`, line breaks inside quotes do not count.

    A second thread reads the next block while the caller works on this one.
    """
    total = sum(map(size_of, files))
    bytes_before = 0
    for path in files:
        with unpacked(path) as (plain, packed), ThreadPoolExecutor(1) as thread:
            line = 1
            next_lines = thread.submit(whole_lines, plain, BLOCK_BYTES, quoted)
            while data := next_lines.result():
                next_lines = thread.submit(whole_lines, plain, BLOCK_BYTES, quoted)
                if line == 1:
                    data = data.removeprefix(BYTE_ORDER_MARK)
                check_lines(data, path, line)
                yield Block(path, data, line)
                line += data.count(b"\n")
                progress.update("Reading", bytes_before + packed.tell(), total)
        bytes_before += size_of(path)


def split_block(block: Block, size: int, quoted: bool) -> Iterator[Block]:
    file = io.BytesIO(block.data)
    line = block.first_line
    while data := whole_lines(file, size, quoted):
        yield Block(block.path, data, line)
        line += data.count(b"\n")


def whole_lines(file: IO[bytes], size: int, quoted: bool) -> bytes:
    """The next `size` bytes of a file, and the rest of their last line."""
    data = file.read(size) + file.readline(LINE_BYTES)
    if quoted and data.count(b'"') % 2:
        data += rest_of_quote(file)
    return data


def rest_of_quote(file: IO[bytes]) -> bytes:
    """Lines up to the one that closes a quote; a stray quote is never closed."""
    rest = bytearray()
    for _ in range(QUOTED_LINES):
        line = file.readline(LINE_BYTES - len(rest))
        rest += line
        if not line or line.count(b'"') % 2:
            break
    return bytes(rest)


def check_lines(data: bytes, path: File, first_line: int) -> None:
    """Raise if a line is too long, looking at one line break in LINE_BYTES."""
    start = 0
    while len(data) - start > LINE_BYTES:
        end = data.rfind(b"\n", start, start + LINE_BYTES)
        if end < 0:
            raise line_too_long(path, first_line + data.count(b"\n", 0, start))
        start = end + 1


def limited_lines(file: IO[bytes], path: File) -> Iterator[bytes]:
    lines = iter(lambda: file.readline(LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_BYTES:
            raise line_too_long(path, number)
        yield line


def line_too_long(path: File, number: int) -> InputError:
    return InputError(
        f"{path}, line {number}: the line is longer than {LINE_BYTES >> 20} MiB; "
        "is this a file of lines?"
    )
