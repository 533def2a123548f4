"""The files that a log's source names: paths, globs, folders, standard input, and URLs (s3://, gs://, abfs://, ...).

Files at a URL are found, opened and measured by fsspec. Credentials and endpoints are those that the file system's own
package finds, e.g. in AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL for s3fs; posrec neither asks for them nor stores them.
"""

import glob
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from posrec.errors import InputError, first_line, not_installed

STANDARD_INPUT = "-"
SEPARATOR = "://"
BUFFER_BYTES = 1 << 20
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "abfss": "azure", "az": "azure"}

Source = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class RemoteFile:
    """One file at a URL, with the few methods of a Path that readers use."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.url).suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.url).parts

    @cached_property
    def size(self) -> int:
        with remote_errors(self.url):
            system, path = file_system(self.url)
            return int(system.size(path))

    def stat(self) -> os.stat_result:
        return os.stat_result((0, 0, 0, 0, 0, 0, self.size, 0, 0, 0))

    def open(self, mode: str = "rb") -> IO[bytes]:
        with remote_errors(self.url):
            system, path = file_system(self.url)
            # fsspec's own files have no `readline` of a limited length.
            return cast(IO[bytes], io.BufferedReader(system.open(path, mode), BUFFER_BYTES))


File = Path | RemoteFile


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


def is_url(name: object) -> bool:
    return isinstance(name, str) and SEPARATOR in name


def find_remote(url: str) -> tuple[list[RemoteFile], bool]:
    """The files that a URL names: one, those of a glob, or all below a folder; and whether it names just one."""
    with remote_errors(url):
        system, path = file_system(url)
        if any(sign in path for sign in "*?["):
            names = [name for name in system.glob(path) if not system.isdir(name)]
        elif system.isdir(path):
            names = system.find(path)
        elif system.exists(path):
            return [RemoteFile(url)], True
        else:
            names = []
    return [RemoteFile(system.unstrip_protocol(name)) for name in sorted(names)], False


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise not_installed(f"a log at {url}", "s3") from None
    scheme = url.partition(SEPARATOR)[0]
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except ImportError:
        if scheme in EXTRAS:
            raise not_installed(f"a log at {scheme}://", EXTRAS[scheme]) from None
        raise InputError(f"{url}: the package that reads {scheme}:// is not installed") from None
    except ValueError as error:
        raise InputError(f"{url} can't be opened: {error}") from None


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Report what a file system says as an InputError that names the URL."""
    try:
        yield
    except (InputError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise InputError(f"{url} does not exist; check the bucket and the path") from None
    except PermissionError as error:
        raise InputError(f"{url} can't be read: {error}; check the credentials") from None
    except Exception as error:  # every file system has errors of its own
        raise InputError(f"{url} can't be read: {first_line(error)}") from None


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


@contextmanager
def local_copy(file: File) -> Iterator[Path]:
    """The file itself, or a temporary copy of a remote one, for formats that are not read from front to back."""
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        copy = Path(folder) / file.name
        with remote_errors(file.url), file.open() as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        yield copy
