"""Finds and opens the files of a log: paths, globs, folders, standard input, URLs.

fsspec opens URLs (s3://, gs://, abfs://, ...), finds credentials and decompresses all files.
"""

import glob
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fsspec.compression import compr
from fsspec.core import url_to_fs

from posrec.errors import InputError, NothingToRead, first_line
from posrec.io import open_regular

STANDARD_INPUT = "-"
BUFFER_BYTES = 1 << 20
MAX_EXPANSION = 250  # of a compressed file; logs have five to twenty
ALLOWED_BYTES = 64 << 20  # of a compressed file in any case
# A click takes memory however short its line is. Compressed logs have a line in five bytes.
LINES_PER_BYTE = 4
ALLOWED_LINES = 4 << 20
# What compressed files begin with, by fsspec's name of the compression.
SIGNATURES = {
    "gzip": rb"\x1f\x8b",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "bz2": rb"BZh[1-9][1\x17]",
    "xz": rb"\xfd7zXZ\0",
}
SIGNATURE_BYTES = 6

Source = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class RemoteFile:
    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.url).parts

    @cached_property
    def size(self) -> int:
        with file_system(self.url) as (system, path):
            return int(system.size(path))

    def open(self, mode: str = "rb") -> IO[bytes]:
        with file_system(self.url) as (system, path):
            # fsspec's own files have no `readline` of a limited length.
            return io.BufferedReader(system.open(path, mode), BUFFER_BYTES)


File = Path | RemoteFile


def size_of(file: File) -> int:
    """The bytes of a file as it is stored; 0 for a pipe or a device."""
    return file.size if isinstance(file, RemoteFile) else file.stat().st_size


def find_files(source: Source) -> list[File]:
    """Every file that `source` names. Globs and folders are sorted, without empty files and what
    Spark adds (_SUCCESS, .crc)."""
    names = names_in(source)
    if not names:
        raise InputError("no file was named; give at least one")
    files: list[File] = []
    for name in names:
        if isinstance(name, str) and "://" in name:
            files += find_remote(name)
        else:
            files += find_local(Path(name))
    for file in files:
        if size_of(file) == 0:
            raise NothingToRead(f"{file} is empty; there is nothing to read")
    return files


def names_in(source: Source) -> list[str | Path]:
    return [source] if isinstance(source, str | Path) else list(source)


def find_local(path: Path) -> Sequence[File]:
    if path.is_dir():
        files = list(filter(is_data_file, sorted(path.rglob("*"))))
        if not without_hidden(files, str(path)):
            raise InputError(
                f"{path} is a folder; name the files in it, e.g. '{path}/*.csv'"
            )
        return with_data(files, str(path))
    if path.exists():
        return [path]
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns too)
    files = [file for file in map(Path, matches) if not file.is_dir()]
    if not files:
        relative = "" if path.is_absolute() else f" (relative to {Path.cwd().name}/)"
        raise InputError(f"{path} does not exist; check the path{relative}")
    return with_data(files, str(path))


def find_remote(url: str) -> Sequence[File]:
    with file_system(url) as (system, path):
        if system.isfile(path):
            return [RemoteFile(url)]
        if system.isdir(path):
            names = system.find(path)
        else:
            names = filter(system.isfile, system.glob(path))
        files = [RemoteFile(system.unstrip_protocol(name)) for name in sorted(names)]
        if not files:
            raise FileNotFoundError
        return with_data(files, url)


def is_data_file(path: Path) -> bool:
    named_as_data = path.suffix == ".parquet" or path.name.startswith("part-")
    return named_as_data and path.is_file()


def with_data(files: Sequence[File], name: str) -> list[File]:
    filled = [file for file in without_hidden(files, name) if size_of(file)]
    if not filled:
        raise InputError(
            f"{name} has no data: its files are empty, or begin with _ or ."
        )
    return filled


def without_hidden(files: Sequence[File], name: str) -> list[File]:
    """Without names that begin with _ or a point below the folder or glob `name`."""
    folder = PurePosixPath(name)
    if "*" in name:
        folder = PurePosixPath(name[: name.index("*")] + "*").parent
    depth = len(folder.parts)

    def is_hidden(file: File) -> bool:
        return any(name.startswith(("_", ".")) for name in file.parts[depth:])

    return [file for file in files if not is_hidden(file)]


@contextmanager
def file_system(url: str) -> Iterator[tuple[Any, str]]:
    """fsspec's file system and the path in it, with errors that name the URL."""
    try:
        yield url_to_fs(url)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"{url} does not exist; check the bucket and the path"
        ) from None
    except PermissionError as error:
        raise InputError(
            f"{url} can't be read: {error}; check the credentials"
        ) from None
    except Exception as error:  # every file system has errors of its own
        raise InputError(f"{url} can't be read: {first_line(error)}") from None


@contextmanager
def with_standard_input(source: Source) -> Iterator[Source]:
    """`source` with "-" replaced by a temporary file: the first bytes are needed twice."""
    names = names_in(source)
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


@contextmanager
def local_copy(file: File) -> Iterator[Path]:
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        copy = Path(folder) / file.name
        with file_system(file.url) as (system, path):
            system.get_file(path, str(copy))
        yield copy


class BoundedStream(io.RawIOBase):
    """The content of a compressed file, if it is not larger than a log can be."""

    def __init__(self, file: File, stream: IO[bytes]) -> None:
        self.file = file
        self.stream = stream
        self.left = max(ALLOWED_BYTES, MAX_EXPANSION * size_of(file))
        self.lines_left = max(ALLOWED_LINES, LINES_PER_BYTE * size_of(file))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        try:
            content = self.stream.read(len(view))
        except Exception as error:  # every decompressor has errors of its own
            raise InputError(
                f"{self.file} is cut short or damaged: it can't be decompressed ({error}); "
                "fetch it again"
            ) from None
        view[: len(content)] = content
        self.left -= len(content)
        self.lines_left -= content.count(b"\n")
        if self.left < 0 or self.lines_left < 0:
            raise InputError(
                f"{self.file} decompresses to more than {MAX_EXPANSION} times its size, or to "
                f"{LINES_PER_BYTE} lines for each of its bytes, which no log does; if you trust "
                "it, decompress it yourself"
            )
        return len(content)


def opened(file: File) -> IO[bytes]:
    return open_regular(file) if isinstance(file, Path) else file.open()


def compression_of(start: bytes) -> str | None:
    """fsspec's name of the compression, by a file's first bytes, not its name."""
    for compression, signature in SIGNATURES.items():
        if re.match(signature, start):
            return compression
    return None


def is_compressed(file: File) -> bool:
    with opened(file) as stored:
        return compression_of(stored.read(SIGNATURE_BYTES)) is not None


@contextmanager
def unpacked(file: File) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The decompressed file, and the stored one, which knows how much was read."""
    with opened(file) as packed:
        compression = compression_of(packed.read(SIGNATURE_BYTES))
        packed.seek(0)
        if compression is None:
            yield packed, packed
            return
        stream = compr[compression](packed, mode="rb")
        yield io.BufferedReader(BoundedStream(file, stream), BUFFER_BYTES), packed


def read_start(file: File, size: int) -> bytes:
    with unpacked(file) as (plain, _):
        return plain.read(size)


def read_whole(file: File) -> bytes:
    return read_start(file, -1)
