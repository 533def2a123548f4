"""The user's files as blocks of whole lines: globs, several files, gzip and zstd.

Every text format is read through `blocks`, so that compression, progress, line numbers and memory (one block, not one
file) are handled the same way for all of them.
"""

import glob
import gzip
import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np
import zstandard

from posrec.data.source.limits import EXPANSION, LINE_BYTES, ExpandsTooFar, LimitedExpansion, LineTooLong, check_lines
from posrec.data.source.remote import File, find_remote, is_url
from posrec.errors import InputError
from posrec.progress import Progress

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 32 << 20
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
STANDARD_INPUT = "-"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CACHE_BYTES = 1 << 18  # compared at a time, so that the result stays in a cache
PIECE_BYTES = 1 << 12  # of zstd, decompressed at a time; four bytes of it can hold 128 KiB, so a piece at most 128 MiB

Source = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Block:
    """Whole lines of a file. `first_line` is the number of the first one, counted from 1 as an editor does."""

    path: File
    data: bytes
    first_line: int


def find_files(source: Source) -> list[File]:
    """Every file that `source` names, in the order given: paths, globs, URLs, and folders as Spark writes them.

    The files of a glob or a folder are sorted. Those that Spark adds to its data (_SUCCESS, .crc) are left out.
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    files: list[File] = []
    if not names:
        raise InputError("no file was named; give at least one")
    for name in names:
        found, is_one = find_remote(str(name)) if is_url(name) else find_local(name)
        data = [file for file in found if is_one or (not is_hidden(file, str(name)) and file.stat().st_size)]
        if found and not data:
            raise InputError(f"{name} has no data: its files are empty, or begin with _ or .")
        if not found:
            relative = "" if is_url(name) or Path(name).is_absolute() else f" (relative to {Path.cwd().name}/)"
            raise InputError(f"{name} does not exist; check the path{relative}")
        files.extend(data)
    for path in files:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; there is nothing to read")
    return files


def find_local(name: str | Path) -> tuple[list[Path], bool]:
    """The files that a path, a folder or a glob names; and whether it names just one."""
    path = Path(name)
    if path.is_dir():
        below = sorted(one for one in path.rglob("*") if one.is_file())
        if not any(is_data_file(one) and not is_hidden(one, str(path)) for one in below):
            raise InputError(f"{path} is a folder; name the files in it, e.g. '{path}/*.csv'")
        return [one for one in below if is_data_file(one)], False
    if path.exists():
        return [path], True
    matches = sorted(glob.glob(str(name), recursive=True))  # noqa: PTH207 (absolute patterns too)
    return [one for match in matches if not (one := Path(match)).is_dir()], False


def is_data_file(path: Path) -> bool:
    """Whether a file of a folder looks like one that Spark or another engine wrote, not like one put there by hand."""
    return path.suffix == ".parquet" or path.name.startswith("part-")


def is_hidden(file: File, name: str) -> bool:
    """Whether the file's name, or that of a folder below the one that was named, begins with _ or a point."""
    fixed = Path(name)
    if "*" in name:
        fixed = Path(name[: name.index("*")] + "*").parent  # the folder above the first name with an asterisk
    return any(part.startswith(("_", ".")) for part in file.parts[len(fixed.parts) :])


@contextmanager
def with_standard_input(source: Source) -> Iterator[Source]:
    """`source` with "-" replaced by a file that holds standard input.

    Finding the format and the compression needs the first bytes twice, so the input is copied to a temporary file.
    Errors call that file "standard input".
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    if STANDARD_INPUT not in map(str, names):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        copy = Path(folder) / "standard input"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield [copy if str(name) == STANDARD_INPUT else name for name in names]
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", "")) from None


def unpacked(file: IO[bytes]) -> IO[bytes]:
    """The decompressed bytes of an open file: gzip and zstd are recognized by their first bytes, not by the name."""
    magic, size = file.read(4), file.seek(0, io.SEEK_END)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        plain = cast(IO[bytes], gzip.GzipFile(fileobj=file))
    elif magic == ZSTD_MAGIC:
        plain = cast(IO[bytes], ZstdReader(file))
    else:
        return file
    return io.BufferedReader(LimitedExpansion(plain, size), 1 << 20)


def is_compressed(path: File) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith((GZIP_MAGIC, ZSTD_MAGIC))


class ZstdReader(io.RawIOBase):
    """Zstd frames as a stream that raises if the last frame is truncated; the library's own reader does not."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self.plain:
            packed = self.frame.unused_data if self.frame.eof else b""
            packed = packed or self.file.read(PIECE_BYTES)
            if not packed:
                if not self.frame.eof:
                    raise EOFError("the last zstd frame is cut short")
                return 0
            if self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.plain = memoryview(self.frame.decompress(packed))
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self.plain))
        view[:size], self.plain = self.plain[:size], self.plain[size:]
        return size


def read_start(path: File, size: int) -> bytes:
    """The first `size` bytes of a file, decompressed."""
    with path.open("rb") as packed, decompression_errors(path):
        return unpacked(packed).read(size)


def read_whole(path: File) -> bytes:
    """A whole file, decompressed; for formats that are not made of lines."""
    with path.open("rb") as packed, decompression_errors(path):
        return unpacked(packed).read()


@contextmanager
def decompression_errors(path: File) -> Iterator[None]:
    """Report a truncated or damaged archive as an InputError that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InputError(
            f"{path} is cut short or damaged: it can't be decompressed ({error}); fetch it again"
        ) from None
    except ExpandsTooFar:
        raise InputError(
            f"{path} decompresses to more than {EXPANSION} times its size, which no log does; if you trust it, "
            "decompress it yourself"
        ) from None
    except LineTooLong as error:
        raise InputError(
            f"{path}, line {error.line}: the line is longer than {LINE_BYTES >> 20} MiB; is this a file of lines?"
        ) from None


def blocks(files: Sequence[File], progress: Progress, quoted: bool = False) -> Iterator[Block]:
    """Every file as blocks of whole lines. With `quoted`, a line break inside double quotes does not end a line.

    The next block is read and decompressed in a second thread while the caller works on the current one.
    """
    total, before = sum(path.stat().st_size for path in files), 0
    for path in files:
        with path.open("rb") as packed, ThreadPoolExecutor(1) as ahead, decompression_errors(path):
            plain, line = unpacked(packed), 1
            coming = ahead.submit(whole_lines, plain, quoted)
            while data := numbered_from(line, coming):
                coming = ahead.submit(whole_lines, plain, quoted)
                if line == 1:
                    data = data.removeprefix(BYTE_ORDER_MARK)
                yield Block(path, data, line)
                line += count_lines(data)
                progress.update("Reading", before + packed.tell(), total)
        before += path.stat().st_size


def numbered_from(line: int, block: "Future[bytes]") -> bytes:
    """The data of a block that begins at `line` of its file."""
    try:
        return block.result()
    except LineTooLong as error:
        raise LineTooLong(line + error.line - 1) from None


def whole_lines(file: IO[bytes], quoted: bool) -> bytes:
    """The next BLOCK_BYTES of a file, up to the end of their last line."""
    data = file.read(BLOCK_BYTES)
    data += file.readline(LINE_BYTES)
    if quoted and data.count(b'"') % 2:
        data += rest_of_quote(file)
    check_lines(data)
    return data


def count_lines(data: bytes) -> int:
    """`data.count(newline)`, several times faster where lines are short."""
    array = np.frombuffer(data, dtype=np.uint8)
    pieces = (array[start : start + CACHE_BYTES] for start in range(0, len(array), CACHE_BYTES))
    return sum(int(np.count_nonzero(piece == ord("\n"))) for piece in pieces)


def rest_of_quote(file: IO[bytes]) -> bytes:
    """Lines up to the one that closes an open quote, or a thousand of them if a stray quote is never closed."""
    lines: list[bytes] = []
    left = LINE_BYTES
    while left > 0 and len(lines) < 1000:
        lines.append(file.readline(left))
        left -= len(lines[-1])
        if not lines[-1] or lines[-1].count(b'"') % 2:
            break
    return b"".join(lines)


def decode(block: Block) -> str:
    try:
        return block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = block.first_line + block.data.count(b"\n", 0, error.start)
        raise InputError(f"{block.path}, line {line}: not UTF-8 text; convert the file first") from None
