"""Files at a URL (s3://, gs://, abfs://, ...), by fsspec: they are found, opened and measured like local ones.

Credentials and endpoints are those that the file system's own package finds, e.g. in AWS_ACCESS_KEY_ID and
AWS_ENDPOINT_URL for s3fs; posrec neither asks for them nor stores them.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from posrec.errors import InputError, not_installed

SEPARATOR = "://"
BUFFER_BYTES = 1 << 20
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "abfss": "azure", "az": "azure"}


def is_url(name: object) -> bool:
    return isinstance(name, str) and SEPARATOR in name


@dataclass(frozen=True)
class RemoteStat:
    st_size: int


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

    def stat(self) -> RemoteStat:
        return RemoteStat(self.size)

    def open(self, mode: str = "rb") -> IO[bytes]:
        with remote_errors(self.url):
            system, path = file_system(self.url)
            # fsspec's own files have no `readline` of a limited length.
            return cast(IO[bytes], io.BufferedReader(system.open(path, mode), BUFFER_BYTES))


File = Path | RemoteFile


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
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{url} can't be read: {reason}") from None


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
