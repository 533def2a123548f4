"""The files that a log's source names, found and opened: paths, globs, folders, standard input,
URLs.

fsspec opens URLs (s3://, gs://, abfs://, ...) and decompresses all files. Credentials are those
that the file system's package finds; posrec neither asks for them nor stores them.
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
from typing import IO, TYPE_CHECKING, TypeGuard, cast

from fsspec.compression import compr
from fsspec.core import url_to_fs

from posrec.errors import InputError, first_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT = "-"
SEPARATOR = "://"
BUFFER_BYTES = 1 << 20
MAX_EXPANSION = (
    250  # how many times its compressed size a file may have; logs have five to twenty
)
ALLOWED_BYTES = 64 << 20  # that a compressed file may have, however small it is
# What compressed files begin with, by fsspec's name of the compression.
SIGNATURES = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bz2": re.compile(rb"BZh[1-9][1\x17]"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
}
SIGNATURE_BYTES = 6

Source = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, with what readers use of a Path."""

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
        with remote_errors(self.url):
            system, path = url_to_fs(self.url)
            return int(system.size(path))

    def open(self, mode: str = "rb") -> IO[bytes]:
        with remote_errors(self.url):
            system, path = url_to_fs(self.url)
            # fsspec's own files have no `readline` of a limited length.
            return cast(
                IO[bytes], io.BufferedReader(system.open(path, mode), BUFFER_BYTES)
            )


File = Path | RemoteFile


def size_of(file: File) -> int:
    """The bytes of a file, compressed if it is; 0 for a pipe or a device."""
    return file.size if isinstance(file, RemoteFile) else file.stat().st_size


def find_files(source: Source) -> list[File]:
    """Every file that `source` names, in the order given; those of a glob or a folder are sorted.

    What Spark adds (_SUCCESS, .crc) and empty files are left out of globs and folders.
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    if not names:
        raise InputError("no file was named; give at least one")
    files: list[File] = []
    for name in names:
        files += find_remote(name) if is_url(name) else find_local(Path(name))
    for file in files:
        if size_of(file) == 0:
            raise InputError(f"{file} is empty; there is nothing to read")
    return files


def find_local(path: Path) -> Sequence[File]:
    if path.is_dir():
        below = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and is_data_file(file)
        ]
        if not without_hidden(below, str(path)):
            raise InputError(
                f"{path} is a folder; name the files in it, e.g. '{path}/*.csv'"
            )
        return with_data(below, str(path))
    if path.exists():
        return [path]
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns too)
    found = [file for file in map(Path, matches) if not file.is_dir()]
    if not found:
        relative = "" if path.is_absolute() else f" (relative to {Path.cwd().name}/)"
        raise InputError(f"{path} does not exist; check the path{relative}")
    return with_data(found, str(path))


def find_remote(url: str) -> Sequence[File]:
    with remote_errors(url):
        system, path = url_to_fs(url)
        if system.isfile(path):
            return [RemoteFile(url)]
        names = (
            system.find(path)
            if system.isdir(path)
            else filter(system.isfile, system.glob(path))
        )
        files = [RemoteFile(system.unstrip_protocol(name)) for name in sorted(names)]
        if not files:
            raise FileNotFoundError
        return with_data(files, url)


def is_data_file(path: Path) -> bool:
    """Whether an engine such as Spark may have written a file of a folder."""
    return path.suffix == ".parquet" or path.name.startswith("part-")


def with_data(files: Sequence[File], name: str) -> list[File]:
    """The files of a glob or a folder that hold data; raises if none does."""
    kept = [file for file in without_hidden(files, name) if size_of(file)]
    if not kept:
        raise InputError(
            f"{name} has no data: its files are empty, or begin with _ or ."
        )
    return kept


def without_hidden(files: Sequence[File], name: str) -> list[File]:
    """Those whose names below the given folder do not begin with _ or a point."""
    fixed = PurePosixPath(name)
    if "*" in name:
        fixed = PurePosixPath(name[: name.index("*")] + "*").parent
    below = len(fixed.parts)
    return [
        file
        for file in files
        if not any(part[0] in "_." for part in file.parts[below:])
    ]


def is_url(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and SEPARATOR in name


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Report a file system's error as an InputError that names the URL."""
    try:
        yield
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


@contextmanager
def local_copy(file: File) -> Iterator[Path]:
    """The file itself, or a temporary copy of a remote one."""
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        copy = Path(folder) / file.name
        with remote_errors(file.url):
            system, path = url_to_fs(file.url)
            system.get_file(path, str(copy))
        yield copy


class BoundedStream(io.RawIOBase):
    """What a compressed file holds; an InputError if that is more than a log can be."""

    def __init__(self, file: File, stream: IO[bytes]) -> None:
        self.file = file
        self.stream = stream
        self.left = max(ALLOWED_BYTES, MAX_EXPANSION * size_of(file))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        try:
            content = self.stream.read(len(view))
        except Exception as error:  # every decompressor has errors of its own
            raise InputError(
                f"{self.file} is cut short or damaged: it can't be decompressed ({error}); fetch it again"
            ) from None
        view[: len(content)] = content
        self.left -= len(content)
        if self.left < 0:
            raise InputError(
                f"{self.file} decompresses to more than {MAX_EXPANSION} times its size, which no log does; "
                "if you trust it, decompress it yourself"
            )
        return len(content)


def compression_of(start: bytes) -> str | None:
    """fsspec's name of the compression, from a file's first bytes: its name may be wrong."""
    return next((name for name, sign in SIGNATURES.items() if sign.match(start)), None)


def is_compressed(file: File) -> bool:
    with file.open("rb") as opened:
        return compression_of(opened.read(SIGNATURE_BYTES)) is not None


@contextmanager
def unpacked(file: File) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The decompressed bytes, and the file itself, which knows how much was read."""
    with file.open("rb") as packed:
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
    """For formats that are not made of lines."""
    return read_start(file, -1)
