"""Limits on what a small file can become in memory: how far it may expand, and how long a line may be.

A few hundred kilobytes of zstd can hold gigabytes of repeated lines, and a gzip file of two megabytes a line of two
gigabytes. Logs compress five to twenty times, and their lines have a few kilobytes at most.
"""

import io
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

EXPANSION = 250  # how many times its compressed size a file may have
ALWAYS_ALLOWED = 64 << 20  # bytes, however small the file is
LINE_BYTES = 16 << 20


class ExpandsTooFar(ValueError):
    """A compressed file is larger than EXPANSION times its size."""


class LineTooLong(ValueError):
    """A line has more than LINE_BYTES; `line` is its number, counted from 1."""

    def __init__(self, line: int) -> None:
        self.line = line


class LimitedExpansion(io.RawIOBase):
    """The decompressed bytes of a file of `packed` bytes, up to its limit."""

    def __init__(self, file: IO[bytes], packed: int) -> None:
        self.file = file
        self.left = max(ALWAYS_ALLOWED, EXPANSION * packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        size: int = self.file.readinto(buffer)  # type: ignore[attr-defined]
        self.left -= size
        if self.left < 0:
            raise ExpandsTooFar
        return size


def limited_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Every line of a file, with its line break."""
    number = 0
    while line := file.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise LineTooLong(number)
        yield line


def check_lines(data: bytes) -> None:
    """Raise LineTooLong if a line of `data` is too long. It looks at a few bytes of each LINE_BYTES of them."""
    start = 0
    while len(data) - start > LINE_BYTES:
        end = data.rfind(b"\n", start, start + LINE_BYTES)
        if end < 0:
            raise LineTooLong(data.count(b"\n", 0, start) + 1)
        start = end + 1
