"""The options of `posrec serve`. Workers get them as JSON in a variable of their environment, never
in a command line: they hold the API key and the password of the session store."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from posrec.config import parse_duration
from posrec.errors import InputError
from posrec.models.own_code import OwnCode
from posrec.server.schemas import MOST_CLICKS

MOST_NAME_CHARACTERS = 40  # of a run's name in the id of an answer
KEY_VARIABLE = "POSREC_API_KEY"
KEY_FILE_VARIABLE = "POSREC_API_KEY_FILE"
STORE_VARIABLE = "POSREC_SESSION_STORE"
SETTINGS_VARIABLE = "POSREC_SERVER_SETTINGS"  # of the workers


class ServerSettings(msgspec.Struct, frozen=True):
    runs: tuple[str, ...]  # each answers its share of the sessions
    device: str = "cpu"
    api_key: str | None = None
    session_store: str | None = None
    max_length: int = (
        MOST_CLICKS  # longer sessions are refused; the model reads the latest clicks
    )
    max_body: int = 2 << 20  # bytes
    request_timeout: float = 10.0  # seconds that a client may take to send its request
    queue: int = (
        128  # work that may wait in a worker, in plain requests; more is answered 503
    )
    allow_origin: tuple[str, ...] = ()  # CORS is off unless origins are given
    allow_host: tuple[
        str, ...
    ] = ()  # the names that the server answers for; none means any
    log_requests: bool = False
    onnx: bool = True  # compute with the run's export
    code: OwnCode = OwnCode()  # for a run of the user's own model or encoding
    split: tuple[float, ...] = ()  # the shares of the runs; none means equal ones
    allow_file: str | None = None  # a file of item ids: only these are recommended
    deny_file: str | None = None  # a file of item ids: these are never recommended
    items_file: str | None = (
        None  # a file of items, whose columns replace those of the runs
    )
    feedback: str | None = None  # the folder for what POST /v1/feedback receives
    keep_feedback: float | None = (
        None  # seconds after which its files are deleted; None keeps them
    )
    workers: int = 1
    shared: str = ""  # the folder for the files that several workers share

    @property
    def names(self) -> list[str]:
        """Of the runs, by their folders, for reports and metrics; with their places where two
        folders have the same.

        >>> ServerSettings(("runs/a", "/srv/my run/")).names, ServerSettings(("a/run", "b/run")).names
        (['a', 'my_run'], ['run.1', 'run.2'])
        """
        names = [
            re.sub(r"[^\w.-]", "_", Path(run).absolute().name)[:MOST_NAME_CHARACTERS]
            for run in self.runs
        ]
        same = len(set(names)) < len(names)
        return [
            f"{name}.{place}" if same else name
            for place, name in enumerate(names, start=1)
        ]


@dataclass(frozen=True)
class Listening:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("TLS needs both --tls-certificate and --tls-key")

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"


def parse_keep(text: str | None, feedback: Path | None) -> float | None:
    """The seconds of `--keep-feedback 90d`."""
    if text is None:
        return None
    if feedback is None:
        raise InputError(
            f"--keep-feedback {text} is for --feedback DIR, which is not given"
        )
    return parse_duration(text, "--keep-feedback") / 1000


def chosen_key(file: Path | None) -> str | None:
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and file is not None:
        raise InputError(
            f"give the API key once: either {KEY_VARIABLE} or --api-key-file"
        )
    source = KEY_VARIABLE if file is None else f"--api-key-file {file}"
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise InputError(f"{source} can't be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{source} is not a text file") from None
    if key is None:
        if (
            KEY_FILE_VARIABLE in os.environ
        ):  # an empty variable does not reach the option
            raise InputError(
                f"{KEY_FILE_VARIABLE} is empty; unset it to serve without a key"
            )
        return None
    if not key:
        raise InputError(
            f"{source}: the key is empty; leave it out to serve without a key"
        )
    if key != key.strip() or not key.isprintable():
        raise InputError(
            f"{source}: the key must be one line without spaces around it or control characters"
        )
    return key
