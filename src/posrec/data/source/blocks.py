"""Files of a log as blocks of whole lines, decompressed, with limits on what a small file can become in memory.

Every text format is read through `blocks`, so that compression, progress, line numbers and memory (one block, not one
file) are handled the same way for all of them. A few hundred kilobytes of zstd can hold gigabytes of repeated lines,
and a gzip file of two megabytes a line of two gigabytes. Logs compress five to twenty times, and their lines have a few
kilobytes at most.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import zstandard

from posrec.data.source.files import File
from posrec.errors import InputError
from posrec.progress import Progress

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 32 << 20
START_BYTES = 1 << 20  # of a file that are looked at before it is read
LINE_BYTES = 16 << 20  # the longest line that is read
QUOTED_LINES = 1000  # the most lines of a quoted field
MAX_EXPANSION = 250  # how many times its compressed size a file may have
ALLOWED_BYTES = 64 << 20  # bytes that a compressed file may have, however small it is
PACKED_BYTES = 1 << 12  # decompressed at a time; four bytes of zstd can hold 128 KiB, so these at most 128 MiB
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The first bytes of compressed files, and what makes a decompressor for one stream of them.
DECOMPRESSORS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),  # gzip
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


@dataclass(frozen=True)
class Block:
    """Whole lines of a file. `first_line` is the number of the first one, counted from 1 as an editor does."""

    path: File
    data: bytes
    first_line: int


class Decompressed(io.RawIOBase):
    """The content of a file of one or more gzip or zstd streams. It raises if the last is cut short, and if the content
    is larger than a log can be."""

    def __init__(self, path: File, file: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self.path, self.file, self.decompressor = path, file, decompressor
        self.stream = decompressor()
        self.plain = memoryview(b"")
        self.left = max(ALLOWED_BYTES, MAX_EXPANSION * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self.plain:
            packed = self.stream.unused_data if self.stream.eof else b""
            packed = packed or self.file.read(PACKED_BYTES)
            if not packed:
                if not self.stream.eof:
                    raise EOFError("the last stream is cut short")
                return 0
            if self.stream.eof:
                self.stream = self.decompressor()
            self.plain = memoryview(self.stream.decompress(packed))
            self.left -= len(self.plain)
            if self.left < 0:
                raise InputError(
                    f"{self.path} decompresses to more than {MAX_EXPANSION} times its size, which no log does; if you "
                    "trust it, decompress it yourself"
                )
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self.plain))
        view[:size], self.plain = self.plain[:size], self.plain[size:]
        return size


def decompressor_of(file: IO[bytes]) -> Callable[[], Any] | None:
    """What decompresses an open file: gzip and zstd are recognized by their first bytes, not by the name."""
    start = file.read(4)
    file.seek(0)
    return next((decompressor for magic, decompressor in DECOMPRESSORS.items() if start.startswith(magic)), None)


def is_compressed(path: File) -> bool:
    with path.open("rb") as file:
        return decompressor_of(file) is not None


@contextmanager
def unpacked(path: File) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file: its decompressed bytes, and the file itself, which knows how much of it was read."""
    with path.open("rb") as file:
        if (decompressor := decompressor_of(file)) is None:
            yield file, file
            return
        try:
            yield io.BufferedReader(Decompressed(path, file, decompressor), 1 << 20), file
        except (EOFError, zlib.error, zstandard.ZstdError) as error:
            raise InputError(
                f"{path} is cut short or damaged: it can't be decompressed ({error}); fetch it again"
            ) from None


def read_start(path: File, size: int) -> bytes:
    """The first `size` bytes of a file, decompressed."""
    with unpacked(path) as (plain, _):
        return plain.read(size)


def read_whole(path: File) -> bytes:
    """A whole file, decompressed; for formats that are not made of lines."""
    return read_start(path, -1)


def blocks(files: Sequence[File], progress: Progress, quoted: bool = False) -> Iterator[Block]:
    """Every file as blocks of whole lines. With `quoted`, a line break inside double quotes does not end a line.

    The next block is read and decompressed in a second thread while the caller works on the current one.
    """
    total, before = sum(path.stat().st_size for path in files), 0
    for path in files:
        with unpacked(path) as (plain, packed), ThreadPoolExecutor(1) as ahead:
            line, coming = 1, ahead.submit(whole_lines, plain, BLOCK_BYTES, quoted)
            while data := coming.result():
                coming = ahead.submit(whole_lines, plain, BLOCK_BYTES, quoted)
                if line == 1:
                    data = data.removeprefix(BYTE_ORDER_MARK)
                check_lines(data, path, line)
                yield Block(path, data, line)
                line += data.count(b"\n")
                progress.update("Reading", before + packed.tell(), total)
        before += path.stat().st_size


def split_block(block: Block, size: int, quoted: bool) -> Iterator[Block]:
    """The same lines in blocks of about `size` bytes."""
    file, line = io.BytesIO(block.data), block.first_line
    while data := whole_lines(file, size, quoted):
        yield Block(block.path, data, line)
        line += data.count(b"\n")


def whole_lines(file: IO[bytes], size: int, quoted: bool) -> bytes:
    """The next `size` bytes of a file, up to the end of their last line."""
    data = file.read(size)
    data += file.readline(LINE_BYTES)
    if quoted and data.count(b'"') % 2:
        data += rest_of_quote(file)
    return data


def rest_of_quote(file: IO[bytes]) -> bytes:
    """Lines up to the one that closes an open quote, or QUOTED_LINES of them if a stray quote is never closed."""
    lines: list[bytes] = []
    left = LINE_BYTES
    while left > 0 and len(lines) < QUOTED_LINES:
        lines.append(file.readline(left))
        left -= len(lines[-1])
        if not lines[-1] or lines[-1].count(b'"') % 2:
            break
    return b"".join(lines)


def check_lines(data: bytes, path: File, first_line: int) -> None:
    """Fail if a line of `data` is too long. It looks at a few bytes of each LINE_BYTES of them."""
    start = 0
    while len(data) - start > LINE_BYTES:
        end = data.rfind(b"\n", start, start + LINE_BYTES)
        if end < 0:
            raise line_too_long(path, first_line + data.count(b"\n", 0, start))
        start = end + 1


def limited_lines(file: IO[bytes], path: File) -> Iterator[bytes]:
    """Every line of an open file, with its line break."""
    number = 0
    while line := file.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise line_too_long(path, number)
        yield line


def line_too_long(path: File, number: int) -> InputError:
    return InputError(
        f"{path}, line {number}: the line is longer than {LINE_BYTES >> 20} MiB; is this a file of lines?"
    )
