"""From what the user named to blocks of bytes: globs, several files, gzip and zstd, line by whole line.

Every text format is read through `blocks`, so that compression, progress, line numbers and memory (one block, not one
file) are the same for all of them.
"""

import glob
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard

from posrec.errors import InputError
from posrec.listener import Listener

BLOCK_BYTES = 32 << 20
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Source = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file. `first_line` counts from 1, as an editor does."""

    path: Path
    data: bytes
    first_line: int


def find_files(source: Source) -> list[Path]:
    """Every file that `source` names: a path, a glob, or several of either, in the order given (globs sorted)."""
    names = [source] if isinstance(source, str | Path) else list(source)
    files: list[Path] = []
    for name in names:
        if Path(name).exists():
            files.append(Path(name))
        elif matches := sorted(glob.glob(str(name), recursive=True)):  # noqa: PTH207 (absolute patterns too)
            files.extend(Path(match) for match in matches)
        else:
            raise InputError(f"{name} does not exist; check the path (relative to {Path.cwd().name}/)")
    for path in files:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name the files in it, e.g. '{path}/*.csv'")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; there is nothing to read")
    return files


def unpacked(file: IO[bytes]) -> IO[bytes]:
    """The plain bytes of an open file: gzip and zstd are told by their first bytes rather than the file's name."""
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic == ZSTD_MAGIC:
        return cast(IO[bytes], WholeZstd(file))
    return file


class WholeZstd(io.RawIOBase):
    """Zstd frames as a stream that complains when the last frame is cut short (the library itself stays silent)."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.pending = b""
        self.begun = False

    def read(self, size: int = -1) -> bytes:
        pieces: list[bytes] = []
        while size:
            if not self.pending:
                packed = self.file.read(1 << 20)
                if not packed:
                    break
                self.pending = self.unpack(packed)
                continue
            piece, self.pending = (self.pending, b"") if size < 0 else (self.pending[:size], self.pending[size:])
            pieces.append(piece)
            size -= len(piece) if size > 0 else 0
        if not pieces and self.begun and not self.frame.eof:
            raise EOFError("the last zstd frame ends too early")
        return b"".join(pieces)

    def unpack(self, packed: bytes) -> bytes:
        plain: list[bytes] = []
        while packed:
            if self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.begun = True
            plain.append(self.frame.decompress(packed))
            packed = self.frame.unused_data if self.frame.eof else b""
        return b"".join(plain)


def read_whole(path: Path) -> bytes:
    """All of a file, unpacked; for formats that can't be cut into lines."""
    with path.open("rb") as packed, complaining(path):
        return unpacked(packed).read()


@contextmanager
def complaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InputError(f"{path} is cut short or damaged: it does not unpack ({error}); fetch it again") from None


def blocks(files: Sequence[Path], listener: Listener, quoted: bool = False) -> Iterator[Block]:
    """Every file as blocks of whole lines. With `quoted`, a line break inside double quotes does not end a line."""
    total, before = sum(path.stat().st_size for path in files), 0
    for path in files:
        with path.open("rb") as packed:
            plain, rest, line = unpacked(packed), b"", 1
            while True:
                with complaining(path):
                    data = plain.read(BLOCK_BYTES)
                rest += data if rest or line > 1 else data.removeprefix(BYTE_ORDER_MARK)
                cut = last_line_end(rest, quoted) if data else len(rest)
                if cut:
                    yield Block(path, rest[:cut], line)
                    line += rest.count(b"\n", 0, cut)
                    rest = rest[cut:]
                listener.progress("Reading", before + packed.tell(), total)
                if not data:
                    break
        before += path.stat().st_size


def last_line_end(data: bytes, quoted: bool) -> int:
    """Where the last whole line ends: after a line break that stands outside quotes.

    A stray quote would keep every later line break "inside"; after a thousand lines the last one is taken as it is.
    """
    last = cut = data.rfind(b"\n") + 1
    quotes = data.count(b'"', 0, cut) if quoted else 0
    for _ in range(1000):
        if quotes % 2 == 0 or cut == 0:
            break
        earlier = data.rfind(b"\n", 0, cut - 1) + 1
        quotes -= data.count(b'"', earlier, cut)
        cut = earlier
    return cut if quotes % 2 == 0 and cut else last
